"""`offpolicy record RUN --out demos.npz`: episodes of a saved policy as a file of demonstrations."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offpolicy.commands.options import add_policy_options, add_run, positive
from offpolicy.commands.trust import check_trust
from offpolicy.config.sections import FROM_REPLAY
from offpolicy.errors import ConfigError, SaveError
from offpolicy.files import output_path
from offpolicy.logger.console import plain_console
from offpolicy.output import counted, return_text
from offpolicy.replay.demonstrations import to_env
from offpolicy.runs import check_output
from offpolicy.types import Bool, Float32, Float64, SpaceSpec

if TYPE_CHECKING:
    from offpolicy.collect.evaluation import Episode
    from offpolicy.commands.saved_run import PolicyChoice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run and the file."""
    add_run(parser)
    parser.add_argument("--out", type=Path, required=True, help="file to write: .npz, for replay.demos")
    parser.add_argument("--episodes", type=positive, default=10, help="complete episodes (default: 10)")
    add_policy_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Records the policy."""
    check_trust(arguments.run, is_trusted=arguments.trust)
    from offpolicy.commands.saved_run import PolicyChoice  # imports torch

    return record(arguments.run, PolicyChoice.of(arguments), out=arguments.out, episodes=arguments.episodes)


def record(path: Path, choice: PolicyChoice, *, out: Path, episodes: int) -> int:
    """Runs the deterministic policy, writes its transitions and prints what is in the file.

    Raises `ConfigError`, `EnvFailure` or `SaveError`.
    """
    from offpolicy.collect.evaluation import EpisodeCallbacks, run_episodes
    from offpolicy.commands.saved_run import SavedRun

    check_output("--out", out, ".npz", is_new=True)
    run = SavedRun.find(path, choice)
    space = run.spec.action_space
    if not any(space in info.action_spaces for info in FROM_REPLAY):
        learners = ", ".join(info.name for info in FROM_REPLAY)
        raise ConfigError(f"run: {path} has {space} actions; {learners}, which learn from files, do not take them")
    recorder = Recorder(run.spec)
    callbacks = EpisodeCallbacks(on_spaces=run.require_spaces, on_end=recorder, keeps_steps=True)
    act, seed = run.actor(choice.device), run.seed_of(choice)
    found = run_episodes(act, run.env, episodes=episodes, seed=seed, callbacks=callbacks)
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

    def __call__(self, episode: Episode) -> None:
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
            with output_path(path) as new:
                np.savez_compressed(new, allow_pickle=False, **arrays)
        except OSError as error:
            raise SaveError(f"{path}: {error.strerror}") from error
        return len(order)
