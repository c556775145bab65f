"""The shapes of SAC and TD3 on HalfCheetah-v5: 17 observations, 6 actions, two hidden layers of 256, batches of 256."""

from __future__ import annotations

import torch

from offpolicy.algos.learner import Learner
from offpolicy.algos.registry import make_learner
from offpolicy.config.overrides import load_config
from offpolicy.config.schema import RunConfig
from offpolicy.replay.row_layout import RowLayout
from offpolicy.types import Batches, SpaceSpec

SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6, max_episode_steps=1000)
LAYOUT = RowLayout(SPEC.obs_dim, SPEC.action_dim)
BATCH_SIZE = 256


def config(algo: str, *overrides: str) -> RunConfig:
    """The configuration of `offpolicy train algo=<algo> env=halfcheetah device=cpu`."""
    return load_config([f"algo={algo}", "env=halfcheetah", "device=cpu", *overrides])


def learner(algo: str, *overrides: str) -> Learner:
    """A fresh learner on the CPU."""
    return make_learner(config(algo, *overrides).algo, SPEC, torch.device("cpu"), seed=1)


def batches(num_rows: int = BATCH_SIZE) -> Batches:
    """One batch of plausible rows."""
    rows = torch.randn((num_rows, LAYOUT.width), generator=torch.Generator().manual_seed(1))
    rows[:, LAYOUT.action] = rows[:, LAYOUT.action].tanh()
    rows[:, LAYOUT.terminated] = 0.0
    rows[:, LAYOUT.discount] = 0.99
    return Batches((LAYOUT.split(rows),), None)
