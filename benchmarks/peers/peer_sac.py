"""SAC by Stable-Baselines3 or SBX, which share their interface. Run by the peer's own interpreter; knows nothing of us.

Usage: peer_sac.py MODULE STEPS SEED THREADS OUT, with MODULE stable_baselines3 or sbx, and THREADS 0 for the default.
OUT becomes {"ticks": [[env_steps, seconds], ...], "versions": {...}}.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

TICK_STEPS = 100
PACKAGES = ("stable-baselines3", "sbx-rl", "torch", "jax", "gymnasium", "mujoco", "numpy")


def main(module: str, steps: int, seed: int, threads: int, out: Path) -> None:
    if threads:
        import torch

        torch.set_num_threads(threads)
    model = make_model(module, seed)
    ticks: list[tuple[int, float]] = []

    def tick(_locals: dict[str, Any], _globals: dict[str, Any]) -> bool:
        """Called once per env step, before the update of that step."""
        if model.num_timesteps % TICK_STEPS == 0:
            ticks.append((model.num_timesteps, time.monotonic()))
        return True

    model.learn(total_timesteps=steps, callback=tick)
    out.write_text(json.dumps({"ticks": ticks, "versions": versions()}))


def make_model(module: str, seed: int) -> Any:  # Any: of a package that is not installed here
    return importlib.import_module(module).SAC(
        "MlpPolicy",
        "HalfCheetah-v5",
        learning_rate=3e-4,
        learning_starts=1000,
        batch_size=256,
        tau=0.005,
        gamma=0.99,
        train_freq=1,
        gradient_steps=1,
        ent_coef="auto",
        policy_kwargs={"net_arch": [256, 256]},
        seed=seed,
        device="cpu",
    )


def versions() -> dict[str, str]:
    installed = {dist.metadata["Name"].lower().replace("_", "-"): dist.version for dist in metadata.distributions()}
    return {package: installed[package] for package in PACKAGES if package in installed}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
