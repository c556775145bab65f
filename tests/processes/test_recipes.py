"""Environments of other packages, as docs/environments.md shows them; skipped where the package is not installed."""

from __future__ import annotations

import importlib.util

import pytest

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.probe import probe

pytestmark = [pytest.mark.mp, pytest.mark.timeout(300)]


@pytest.mark.skipif(
    importlib.util.find_spec("shimmy") is None or importlib.util.find_spec("dm_control") is None,
    reason="needs shimmy[dm-control]",
)
def test_dm_control_through_shimmy() -> None:
    spec = probe(EnvConfig(id="shimmy:dm_control/cartpole-swingup-v0", kwargs={"max_episode_steps": 1000}))
    assert (spec.obs_keys, spec.obs_dim) == (("position", "velocity"), 5)
    assert (spec.action_low, spec.action_high, spec.max_episode_steps) == ((-1.0,), (1.0,), 1000)
