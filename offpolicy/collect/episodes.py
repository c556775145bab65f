"""Raw return and length of every training episode, never bootstrapped, clipped or normalised."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from offpolicy.types import EpisodeRecord, Float64, StepOutcome


class EpisodeTracker:
    """Running returns of N environments, which are numbered from `first_index` on."""

    def __init__(self, num_envs: int, first_index: int = 0) -> None:
        self._first_index = first_index
        self.ep_return = np.zeros(num_envs, dtype=np.float64)
        self.ep_length = np.zeros(num_envs, dtype=np.int64)

    def update(self, outcome: StepOutcome, env_steps: int) -> list[EpisodeRecord]:
        """Adds one vector step; returns the episodes that ended in it. `env_steps` counts this step too."""
        self.ep_return += np.where(outcome.is_valid, outcome.reward, 0.0)
        self.ep_length += outcome.is_valid
        done = (outcome.terminated | outcome.truncated) & outcome.is_valid
        finished = [
            EpisodeRecord(
                env_steps=env_steps,
                env_index=self._first_index + env,
                ep_return=float(self.ep_return[env]),
                ep_length=int(self.ep_length[env]),
                terminated=bool(outcome.terminated[env]),
                truncated=bool(outcome.truncated[env]),
                success=float(outcome.success[env]),
            )
            for env in np.flatnonzero(done).tolist()
        ]
        if finished:
            self.ep_return[done], self.ep_length[done] = 0.0, 0
        return finished


EPISODE_COLUMNS = len(EpisodeRecord._fields)


def pack_episodes(records: list[EpisodeRecord]) -> Float64:
    """Returns rows [n, EPISODE_COLUMNS] for the shared episode ring."""
    return np.array(records, dtype=np.float64)


def unpack_episodes(rows: Float64) -> Iterator[EpisodeRecord]:
    """Returns the records of rows read from the episode ring."""
    for record in map(EpisodeRecord._make, rows.tolist()):
        yield record._replace(
            env_steps=int(record.env_steps),
            env_index=int(record.env_index),
            ep_length=int(record.ep_length),
            terminated=bool(record.terminated),
            truncated=bool(record.truncated),
        )
