"""`offpolicy record RUN --out demos.npz`: episodes of a saved policy as a file of demonstrations."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from offpolicy.collect.demonstrations import Recorder
from offpolicy.collect.evaluation import Watch, run_episodes
from offpolicy.commands.saved_run import PolicyChoice, SavedRun
from offpolicy.errors import ConfigError


def record(path: Path, choice: PolicyChoice, *, out: Path, episodes: int) -> int:
    """Runs the deterministic policy, writes its transitions and prints what is in the file.

    Raises `ConfigError`, `EnvFailure` or `SaveError`.
    """
    if out.suffix != ".npz" or out.exists() or not out.parent.is_dir():
        raise ConfigError(f"--out: got {str(out)!r}, allowed a new file in a directory that exists, ending in .npz")
    run = SavedRun.find(path, choice)
    if run.spec.num_actions:
        raise ConfigError(f"run: {path} has Discrete actions; only SAC and TD3, which need a Box, learn from files")
    seed = run.cfg.seed if choice.seed is None else choice.seed
    recorder = Recorder(run.spec)
    found = run_episodes(run.actor(choice.device), run.env, episodes=episodes, seed=seed, watch=Watch(on_end=recorder))
    count, returns = recorder.save(out), found.ep_return
    Console(markup=False, highlight=False).print(
        f"{out}: {count:,} transitions of {len(returns)} episodes, mean return {returns.mean():,.1f}", soft_wrap=True
    )
    return 0
