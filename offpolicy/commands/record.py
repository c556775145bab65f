"""`offpolicy record RUN --out demos.npz`: episodes of a saved policy as a file of demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offpolicy.collect.episode_hook import Interval
from offpolicy.collect.evaluation import EpisodeCallbacks, run_episodes
from offpolicy.collect.post import Episode
from offpolicy.commands.saved_run import PolicyChoice, SavedRun
from offpolicy.config.sections import FROM_REPLAY
from offpolicy.errors import ConfigError, SaveError
from offpolicy.files import output_file
from offpolicy.logger.console import plain_console
from offpolicy.number_text import counted, return_text
from offpolicy.replay.demonstrations import to_env
from offpolicy.types import Bool, Float32, Float64, SpaceSpec


def record(path: Path, choice: PolicyChoice, *, out: Path, episodes: int) -> int:
    """Runs the deterministic policy, writes its transitions and prints what is in the file.

    Raises `ConfigError`, `EnvFailure` or `SaveError`.
    """
    if out.suffix != ".npz" or out.exists() or not out.parent.is_dir():
        raise ConfigError(f"--out: got {str(out)!r}, allowed a new file in a directory that exists, ending in .npz")
    run = SavedRun.find(path, choice)
    space = run.spec.action_space
    if not any(space in info.action_spaces for info in FROM_REPLAY):
        learners = ", ".join(info.name for info in FROM_REPLAY)
        raise ConfigError(f"run: {path} has {space} actions; {learners}, which learn from files, do not take them")
    seed = run.cfg.seed if choice.seed is None else choice.seed
    recorder = Recorder(run.spec)
    callbacks = EpisodeCallbacks(on_spaces=run.require_spaces, on_end=recorder)
    found = run_episodes(run.actor(choice.device), run.env, episodes=episodes, seed=seed, callbacks=callbacks)
    count, returns = recorder.save(out), found.ep_return
    mean = return_text(float(returns.mean()), ",")
    size = f"{counted(count, 'transition')} of {counted(len(returns), 'episode')}"
    plain_console().print(f"{out}: {size}, mean return {mean}", soft_wrap=True)
    return 0


class Recorder:
    """Collects the transitions of whole episodes, each at its end."""

    def __init__(self, spec: SpaceSpec) -> None:
        self._spec = spec
        self._columns: dict[str, list[Float32 | Float64 | Bool]] = {}

    def __call__(self, episode: Episode, _: Interval) -> None:
        """Keeps the transitions of an episode."""
        is_last = np.arange(episode.length) == episode.length - 1
        steps: dict[str, Float32 | Float64 | Bool] = {
            "obs": episode.obs[:-1],
            "action": to_env(episode.action, self._spec),
            "reward": episode.reward,
            "next_obs": episode.obs[1:],
            "terminated": is_last & episode.terminated,
            "truncated": is_last & episode.truncated,
            "episode": np.full(episode.length, episode.index, np.float64),
        }
        for name, values in steps.items():
            self._columns.setdefault(name, []).append(values)

    def save(self, path: Path) -> int:
        """Writes an `.npz` of demonstrations, episode after episode; returns their number. Raises `SaveError`."""
        columns = {name: np.concatenate(values) for name, values in self._columns.items()}
        order = np.argsort(columns["episode"], kind="stable")
        arrays: dict[str, NDArray[Any]] = {name: values[order] for name, values in columns.items()}
        arrays["episode"] = arrays["episode"].astype(np.int64)
        try:
            with output_file(path) as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)
        except OSError as error:
            raise SaveError(f"{path}: {error.strerror}") from error
        return len(order)
