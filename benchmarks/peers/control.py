"""SAC and TD3 as the field writes them in one file: a control for what structure costs, or saves.

Written for this comparison, in the straight-line style that CleanRL made usual: one loop that steps, stores, samples
and updates; NumPy arrays as the replay; `torch.nn`, autograd and `torch.optim.Adam`; one optimiser for both critics.

Usage: python -m benchmarks.peers.control SETTINGS SECONDS SEED THREADS OUT, as peer_models.py.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn
from torch.nn import functional as F

TICK_S = 0.25  # between two readings of the counter
PACKAGES = ("torch", "gymnasium", "mujoco", "numpy")
Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # obs, action, next obs, reward, terminated
Act = Callable[[Tensor], Tensor]
Update = Callable[[Batch, int], None]


class Trainer(NamedTuple):
    """An algorithm with its networks."""

    act: Act  # with noise
    update: Update  # of a batch, with the number of the update, from 1


def mlp(inputs: int, hidden: list[int], outputs: int) -> nn.Sequential:
    sizes = [inputs, *hidden]
    layers = [layer for one, two in zip(sizes, sizes[1:], strict=False) for layer in (nn.Linear(one, two), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


class Critics(nn.Module):
    """Two Q networks."""

    def __init__(self, obs_dim: int, action_dim: int, hidden: list[int]) -> None:
        super().__init__()
        self.q1, self.q2 = (mlp(obs_dim + action_dim, hidden, 1) for _ in range(2))

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([obs, action], 1)
        return self.q1(both).view(-1), self.q2(both).view(-1)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def polyak(target: nn.Module, online: nn.Module, tau: float) -> None:
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.data.copy_(tau * fast.data + (1 - tau) * slow.data)


def sac(args: dict[str, Any], obs_dim: int, action_dim: int) -> Trainer:
    """Soft actor-critic (arXiv:1812.05905) with a tuned temperature."""
    actor = mlp(obs_dim, args["hidden_dims"], 2 * action_dim)
    critics = Critics(obs_dim, action_dim, args["hidden_dims"])
    targets = copy.deepcopy(critics)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=args["actor_lr"])
    q_optimizer = torch.optim.Adam(critics.parameters(), lr=args["critic_lr"])
    log_alpha = torch.zeros(1, requires_grad=True)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=args["actor_lr"])

    def sample(obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(obs).chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        raw = normal.rsample()
        action = torch.tanh(raw)
        log_prob = normal.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(1)

    def update(batch: Batch, number: int) -> None:
        obs, action, next_obs, reward, terminated = batch
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            next_action, next_log_prob = sample(next_obs)
            next_q = torch.min(*targets(next_obs, next_action)) - alpha * next_log_prob
            target_q = reward + (1 - terminated) * args["gamma"] * next_q
        q1, q2 = critics(obs, action)
        q_loss = F.mse_loss(q1, target_q) + F.mse_loss(q2, target_q)
        descend(q_optimizer, q_loss)
        new_action, log_prob = sample(obs)
        actor_loss = (alpha * log_prob - torch.min(*critics(obs, new_action))).mean()
        descend(actor_optimizer, actor_loss)
        alpha_loss = (-log_alpha.exp() * (log_prob.detach() - action_dim)).mean()
        descend(alpha_optimizer, alpha_loss)
        polyak(targets, critics, args["tau"])

    return Trainer(lambda obs: sample(obs)[0], update)


def td3(args: dict[str, Any], obs_dim: int, action_dim: int) -> Trainer:
    """Twin delayed DDPG (arXiv:1802.09477)."""
    actor = nn.Sequential(mlp(obs_dim, args["hidden_dims"], action_dim), nn.Tanh())
    critics = Critics(obs_dim, action_dim, args["hidden_dims"])
    target_actor, targets = copy.deepcopy(actor), copy.deepcopy(critics)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=args["actor_lr"])
    q_optimizer = torch.optim.Adam(critics.parameters(), lr=args["critic_lr"])

    def act(obs: Tensor) -> Tensor:
        action = actor(obs)
        return (action + 0.1 * torch.randn_like(action)).clamp(-1, 1)

    def update(batch: Batch, number: int) -> None:
        obs, action, next_obs, reward, terminated = batch
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(action)).clamp(-0.5, 0.5)
            next_action = (target_actor(next_obs) + noise).clamp(-1, 1)
            target_q = reward + (1 - terminated) * args["gamma"] * torch.min(*targets(next_obs, next_action))
        q1, q2 = critics(obs, action)
        q_loss = F.mse_loss(q1, target_q) + F.mse_loss(q2, target_q)
        descend(q_optimizer, q_loss)
        if number % args["policy_delay"] == 0:
            actor_loss = -critics.q1(torch.cat([obs, actor(obs)], 1)).mean()
            descend(actor_optimizer, actor_loss)
            polyak(target_actor, actor, args["tau"])
            polyak(targets, critics, args["tau"])

    return Trainer(act, update)


def train(args: dict[str, Any], seconds: float, seed: int, threads: int) -> dict[str, Any]:
    """Trains for `seconds` after the random steps; returns the report."""
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    rng = np.random.default_rng(seed)
    makers = [lambda: gym.make(args["env_id"])] * args["num_envs"]
    envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)
    num, (obs_dim,), (action_dim,) = envs.num_envs, envs.single_observation_space.shape, envs.single_action_space.shape
    trainer = (sac if args["algo"] == "sac" else td3)(args, obs_dim, action_dim)
    rows = args["capacity"]
    obs_rows, next_rows = (np.zeros((rows, obs_dim), np.float32) for _ in range(2))
    action_rows = np.zeros((rows, action_dim), np.float32)
    reward_rows, terminated_rows = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    ticks: list[tuple[int, float, int, float]] = []  # env steps, seconds, updates, seconds in these
    steps = updates = 0
    in_updates_s = 0.0  # with the sampling of their batches
    began_s = 0.0
    obs, _ = envs.reset(seed=seed)
    while not began_s or time.monotonic() - began_s < seconds:
        if steps < args["learning_starts"]:
            action = envs.action_space.sample()
        else:
            began_s = began_s or time.monotonic()
            with torch.no_grad():
                action = trainer.act(torch.as_tensor(obs, dtype=torch.float32)).numpy()
        next_obs, reward, terminated, truncated, _ = envs.step(action)
        is_over = terminated | truncated
        places = np.arange(steps, steps + num) % rows
        obs_rows[places], next_rows[places], action_rows[places] = obs, next_obs, action
        reward_rows[places], terminated_rows[places] = reward, terminated
        obs = envs.reset(options={"reset_mask": is_over})[0] if is_over.any() else next_obs
        steps += num
        if not ticks or time.monotonic() - ticks[-1][1] >= TICK_S:
            ticks.append((steps, time.monotonic(), updates, in_updates_s))
        if steps > args["learning_starts"]:
            begun_s = time.monotonic()
            chosen = rng.integers(0, min(steps, rows), args["batch_size"])
            fields = (obs_rows, action_rows, next_rows, reward_rows, terminated_rows)
            updates += 1
            trainer.update(tuple(torch.from_numpy(field[chosen]) for field in fields), updates)  # type: ignore[arg-type]
            in_updates_s += time.monotonic() - begun_s
    found = args | {"num_envs": num, "capacity": len(obs_rows), "batch_size": len(chosen)}
    report = {"ticks": ticks, "env_steps": steps, "updates": updates, "threads": str(torch.get_num_threads())}
    installed = {package: metadata.version(package) for package in PACKAGES}
    return report | {"settings": found, "versions": installed}


if __name__ == "__main__":
    settings, seconds, seed, threads, out = sys.argv[1:]
    Path(out).write_text(json.dumps(train(json.loads(settings), float(seconds), int(seed), int(threads))))
