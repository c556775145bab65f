"""Transitions that hold NaN or Inf: counted, written to files, and skipped up to `env.max_bad_rows`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from offpolicy import fault
from offpolicy.collect.collector import Progress
from offpolicy.collect.episodes import EpisodeTracker
from offpolicy.collect.replay_writer import BadRow, BadRowError, Writer
from offpolicy.envs.vector import VectorAdapter
from offpolicy.errors import NumericsError
from offpolicy.processes.control_page import CollectorWord, ControlPage
from offpolicy.seeding import env_seed
from offpolicy.types import Bool, Float32, StepOutcome


@dataclass(frozen=True, slots=True)
class BadRows:
    """Counts the bad transitions of one collector, writes them to files, and skips them.

    The limit is for those of all collectors of its host.

    `index` tells the collectors of a host apart, `number` those of all hosts. `before` has the bad transitions of each
    collector of this host in the checkpoint that the run goes on from.
    """

    index: int
    number: int
    control: ControlPage
    before: Sequence[int]
    limit: int
    seed: int
    run_dir: Path
    env: VectorAdapter
    writer: Writer
    tracker: EpisodeTracker
    warn: Callable[[str], None]

    def begin(self) -> None:
        """Announces how many bad transitions the checkpoint has counted."""
        self.control.collectors[self.index].set(CollectorWord.BAD_ROWS, self.before[self.index])

    def skip(self, error: BadRowError, outcome: StepOutcome, progress: Progress) -> StepOutcome:
        """Writes the bad transitions to files and ends their episodes; returns the step with new first observations.

        Raises `NumericsError` beyond the limit. Bad transitions count as rows of autoreset: they are none. Where single
        environments cannot be reset, the episodes of all of them end, and none of them is recorded.
        """
        self._count(error.rows, progress)
        where, obs = self._begin_episodes(error.envs, "bad_row", progress)
        self.writer.abandon(np.flatnonzero(where).tolist())
        return outcome._replace(
            next_obs=np.where(where[:, None], obs, outcome.next_obs),
            terminated=outcome.terminated & ~where,
            truncated=outcome.truncated & ~where,
            is_valid=outcome.is_valid & ~where,
        )

    def replace_obs(self, progress: Progress) -> None:
        """Begins other episodes where the first observations of a process, in `progress`, hold NaN or Inf.

        Each counts as a bad transition. Raises `NumericsError` beyond the limit.
        """
        if envs := _bad_envs(progress.obs):
            self._count([BadRow(env, {"obs": progress.obs[env].tolist()}) for env in envs], progress)
            where, obs = self._begin_episodes(envs, "bad_first_obs", progress)
            progress.obs = np.where(where[:, None], obs, progress.obs)

    def _count(self, rows: Sequence[BadRow], progress: Progress) -> None:
        """Counts bad transitions and writes them to files. Raises `NumericsError` beyond the limit."""
        texts = [self._write_file(row, progress) for row in rows]
        num_bad = self.count_of_host()
        if num_bad > self.limit:
            raise NumericsError(texts[0]) from None
        for nth, text in enumerate(texts, num_bad - len(texts) + 1):
            self.warn(f"{text}; skipped, {nth} of env.max_bad_rows={self.limit}")

    def _begin_episodes(self, envs: Sequence[int], stream: str, progress: Progress) -> tuple[Bool, Float32]:
        """Begins episodes in `envs`, or in all that can only be reset together, until none begins with NaN or Inf.

        Returns where they have begun [N], and observations [N, O].
        """
        where = np.zeros(self.env.num_envs, np.bool_)
        where[list(envs) if self.env.can_reset_some else slice(None)] = True
        self.tracker.ep_return[where], self.tracker.ep_length[where] = 0.0, 0
        # The vector steps tell this step from any other, also after a resume; the env steps may stand still.
        path = (stream, self.number, progress.env_steps, progress.vector_steps)
        obs = self._reset(where, env_seed(self.seed, *path))
        attempt = 0
        while bad := _bad_envs(np.where(where[:, None], obs, 0.0)):
            self._count([BadRow(env, {"obs": obs[env].tolist()}) for env in bad], progress)
            again = np.zeros_like(where)
            again[bad] = True
            obs = self._reset(again, env_seed(self.seed, *path, attempt))
            attempt += 1
        return where, obs

    def _reset(self, where: Bool, seed: int) -> Float32:
        """Begins episodes `where` [N], or all; returns observations [N, O]."""
        return self.env.reset_some(seed, range(len(where)), where) if self.env.can_reset_some else self.env.reset(seed)

    def count_of_host(self) -> int:
        """Returns the bad transitions of all collectors of this host, those before a resume among them.

        A collector that still starts has announced nothing, and has had at least those of the checkpoint.
        """
        announced = (words.get(CollectorWord.BAD_ROWS) for words in self.control.collectors)
        return sum(map(max, announced, self.before))

    def _write_file(self, row: BadRow, progress: Progress) -> str:
        """Counts a bad transition and writes it beside the run's records; returns what to say of it."""
        nth = self.control.collectors[self.index].bump(CollectorWord.BAD_ROWS)
        env_steps, step = progress.env_steps, int(self.tracker.ep_length[row.env])
        path = self.run_dir / f"bad-row-{env_steps}-{nth}-collector-{self.number}-env-{row.env}.json"
        facts = {"env_index": row.env, "env_steps": env_steps, "episode_step": step, "seed": self.seed}
        text = f"{row} at env step {env_steps}, episode step {step}, seed {self.seed}"
        try:
            fault.hit("bad_row.write")
            path.write_text(json.dumps({**facts, **row.fields}))
        except OSError as error:
            return f"{text}; {path} cannot be written: {error.strerror}"
        return f"{text}; see {path}"


def _bad_envs(obs: Float32) -> list[int]:
    """Returns the environments whose observation holds NaN or Inf. obs: [N, O]."""
    found: list[int] = np.flatnonzero(~np.isfinite(obs).all(axis=1)).tolist()
    return found
