"""SAC or TD3 by Stable-Baselines3 or SBX, which share their interface. Run by the peer's own interpreter.

Usage: peer_models.py MODULE SETTINGS SECONDS SEED THREADS OUT, with MODULE stable_baselines3 or sbx, SETTINGS as JSON,
SECONDS of learning, and THREADS 0 for the default. OUT becomes the report: `contenders.Report` and the ticks.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

TICK_S = 0.25  # between two readings of the counter
ENDLESS = 1_000_000_000
PACKAGES = ("stable-baselines3", "sbx-rl", "torch", "jax", "gymnasium", "mujoco", "numpy")


def main(module: str, settings: dict[str, Any], seconds: float, seed: int, threads: int, out: Path) -> None:
    import torch

    if threads:
        torch.set_num_threads(threads)
    model = make_model(module, settings, seed)
    in_updates = timed_updates(model)
    ticks: list[tuple[int, float, int, float]] = []
    began_s = 0.0

    def tick(_locals: dict[str, Any], _globals: dict[str, Any]) -> bool:
        """Called once per vector step, before its update; False ends the run."""
        nonlocal began_s
        steps, now_s = model.num_timesteps, time.monotonic()
        if steps >= settings["learning_starts"]:
            began_s = began_s or now_s
        if not ticks or now_s - ticks[-1][1] >= TICK_S:
            ticks.append((steps, now_s, *in_updates))
        return not began_s or now_s - began_s < seconds

    model.learn(total_timesteps=ENDLESS, callback=tick)
    words = str(torch.get_num_threads()) if module == "stable_baselines3" else "JAX's own choice"
    report = {
        "ticks": ticks,
        "env_steps": model.num_timesteps,
        "updates": int(model._n_updates),
        "threads": words,
        "settings": settings_of(model, settings["algo"]),
        "versions": versions(),
    }
    out.write_text(json.dumps(report))


def make_model(module: str, settings: dict[str, Any], seed: int) -> Any:  # Any: of a package that is not installed here
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise

    env = make_vec_env(settings["env_id"], n_envs=settings["num_envs"], seed=seed)
    size = env.action_space.shape[0]
    own: dict[str, Any] = {"ent_coef": "auto"}
    if settings["algo"] == "td3":
        noise = NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
        own = {"policy_delay": settings["policy_delay"], "action_noise": noise}
    return getattr(importlib.import_module(module), settings["algo"].upper())(
        "MlpPolicy",
        env,
        learning_rate=settings["actor_lr"],
        learning_starts=settings["learning_starts"],
        buffer_size=settings["capacity"],
        batch_size=settings["batch_size"],
        tau=settings["tau"],
        gamma=settings["gamma"],
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": settings["hidden_dims"]},
        seed=seed,
        device="cpu",
        **own,
    )


def timed_updates(model: Any, clock: Callable[[], float] = time.monotonic) -> list[Any]:
    """Counts the model's updates and the seconds in them; both libraries read losses at their end. Returns both."""
    train, in_updates = model.train, [0, 0.0]

    def timed(*args: Any, **kwargs: Any) -> None:
        begun_s = clock()
        train(*args, **kwargs)
        in_updates[0] += 1
        in_updates[1] += clock() - begun_s

    model.train = timed
    return in_updates


def settings_of(model: Any, algo: str) -> dict[str, Any]:
    """The settings that the model's own objects have."""
    step_size = float(model.lr_schedule(1.0))  # of actor and critics
    return {
        "algo": type(model).__name__.lower(),
        "num_envs": model.n_envs,
        "env_id": model.get_env().envs[0].spec.id,
        "batch_size": model.batch_size,
        "gamma": model.gamma,
        "tau": model.tau,
        "learning_starts": model.learning_starts,
        "capacity": model.replay_buffer.buffer_size * model.n_envs,
        "policy_delay": int(getattr(model, "policy_delay", 1)) if algo == "td3" else 1,
        "hidden_dims": list(model.policy_kwargs["net_arch"]),
        "actor_lr": step_size,
        "critic_lr": step_size,
    }


def versions() -> dict[str, str]:
    installed = {dist.metadata["Name"].lower().replace("_", "-"): dist.version for dist in metadata.distributions()}
    return {package: installed[package] for package in PACKAGES if package in installed}


if __name__ == "__main__":
    _, given_module, given, given_seconds, given_seed, given_threads, given_out = sys.argv
    numbers = (float(given_seconds), int(given_seed), int(given_threads))
    main(given_module, json.loads(given), *numbers, Path(given_out))
