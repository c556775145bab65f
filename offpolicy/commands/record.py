"""`offpolicy record RUN --out demos.npz`: episodes of a saved policy as a file of demonstrations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from offpolicy.collect.demonstrations import Recorder
from offpolicy.collect.evaluation import Watch, run_episodes
from offpolicy.commands.saved_run import PolicyChoice, SavedRun
from offpolicy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Request:
    """What to record."""

    run: Path
    choice: PolicyChoice
    out: Path
    episodes: int


def record(request: Request) -> int:
    """Run the deterministic policy, write its transitions and say what is in the file.

    Raises `ConfigError`, `EnvFailure` or `SaveError`.
    """
    out, choice = request.out, request.choice
    if out.suffix != ".npz" or out.exists() or not out.parent.is_dir():
        raise ConfigError(f"--out: got {str(out)!r}, allowed a new file in a directory that exists, ending in .npz")
    run = SavedRun.find(request.run, choice)
    if run.spec.num_actions:
        raise ConfigError(f"run: {run.path} has Discrete actions; only SAC and TD3, which need a Box, learn from files")
    seed = run.cfg.seed if choice.seed is None else choice.seed
    recorder = Recorder(run.spec)
    found = run_episodes(
        run.actor(choice.device), run.env, episodes=request.episodes, seed=seed, watch=Watch(on_end=recorder)
    )
    count, returns = recorder.save(out), found.ep_return
    Console(markup=False, highlight=False).print(
        f"{out}: {count:,} transitions of {len(returns)} episodes, mean return {returns.mean():,.1f}", soft_wrap=True
    )
    return 0
