"""SAC or TD3 by Stable-Baselines3 or SBX, which share their interface. Run by the peer's own interpreter.

Usage: peer_models.py MODULE SETTINGS SECONDS SEED THREADS OUT, with MODULE stable_baselines3 or sbx, SETTINGS as JSON,
SECONDS of learning, and THREADS 0 for the default. OUT becomes {"ticks": [[env_steps, seconds, updates, seconds in
them], ...], "env_steps": n, "updates": n, "threads": "...", "settings": {...}, "versions": {...}}; the settings are
read back from the model.
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
        "settings": settings_of(model, module, settings["algo"]),
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
        own = {
            "policy_delay": settings["policy_delay"],
            "action_noise": NormalActionNoise(np.zeros(size), 0.1 * np.ones(size)),
        }
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
    """Has the model count its updates and the seconds in them, with the sampling of their batches; returns both.

    Both libraries read losses at the end of an update: it is computed when `train` returns.
    """
    train, in_updates = model.train, [0, 0.0]

    def timed(*args: Any, **kwargs: Any) -> None:
        begun_s = clock()
        train(*args, **kwargs)
        in_updates[0] += 1
        in_updates[1] += clock() - begun_s

    model.train = timed
    return in_updates


def settings_of(model: Any, module: str, algo: str) -> dict[str, Any]:
    """The settings that the model's own objects have."""
    networks = torch_networks(model) if module == "stable_baselines3" else jax_networks(model)
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
        **networks,
    }


def torch_networks(model: Any) -> dict[str, Any]:
    """Widths and step sizes of Stable-Baselines3's modules and optimisers; the widths of all networks must agree."""
    actor = [width for name, width in torch_widths(model.actor)]
    critics = [torch_widths(critic) for critic in model.critic.q_networks]
    # The last product of an actor and of a critic is its output; SAC's actor has two of them.
    outputs = 2 if hasattr(model.actor, "log_std") else 1
    hidden = [actor[:-outputs], *([width for _, width in critic][:-1] for critic in critics)]
    return {
        "hidden_dims": hidden[0] if len(critics) == 2 and all(one == hidden[0] for one in hidden) else hidden,
        "actor_lr": model.actor.optimizer.param_groups[0]["lr"],
        "critic_lr": model.critic.optimizer.param_groups[0]["lr"],
    }


def torch_widths(module: Any) -> list[tuple[str, int]]:
    return [(name, layer.out_features) for name, layer in module.named_modules() if hasattr(layer, "out_features")]


def jax_networks(model: Any) -> dict[str, Any]:
    """Widths of SBX's layers from the shapes of its parameters, and the step sizes of its schedules."""
    actor = model.policy.actor_state.params["params"]
    (critics,) = model.policy.qf_state.params["params"].values()
    outputs = 2 if type(model).__name__ == "SAC" else 1  # mean and log of std
    hidden = [jax_widths(actor)[:-outputs], jax_widths(critics)[:-1]]
    num_critics = critics["Dense_0"]["kernel"].shape[0]
    return {
        "hidden_dims": hidden[0] if num_critics == 2 and hidden[0] == hidden[1] else hidden,
        "actor_lr": float(model.lr_schedule(1.0)),
        "critic_lr": float(model.initial_qf_learning_rate or model.lr_schedule(1.0)),
    }


def jax_widths(layers: Any) -> list[int]:
    ordered = sorted(layers, key=lambda name: int(name.rpartition("_")[2]))
    return [int(layers[name]["kernel"].shape[-1]) for name in ordered]


def versions() -> dict[str, str]:
    installed = {dist.metadata["Name"].lower().replace("_", "-"): dist.version for dist in metadata.distributions()}
    return {package: installed[package] for package in PACKAGES if package in installed}


if __name__ == "__main__":
    _, given_module, given, given_seconds, given_seed, given_threads, given_out = sys.argv
    numbers = (float(given_seconds), int(given_seed), int(given_threads))
    main(given_module, json.loads(given), *numbers, Path(given_out))
