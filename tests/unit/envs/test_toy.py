"""The small environments are registered, keep Gymnasium's contract, and fail exactly where they are asked to."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from offpolicy.envs import toy


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["PointMass-v0", "DictObs-v0", "DiscreteToy-v0"])
def test_gymnasium_accepts_the_environment(name: str) -> None:
    check_env(gymnasium.make(f"offpolicy.envs.toy:{name}").unwrapped, skip_render_check=True)


def test_the_point_mass_ends_outside_its_square_and_not_before() -> None:
    env = toy.PointMass()
    env.reset(seed=0)
    for _ in range(1000):
        obs, _, terminated, truncated, _ = env.step(np.ones(2, np.float32))
        assert not truncated
        assert terminated == (np.abs(obs[:2]).max() >= 3.0)
        if terminated:
            return
    raise AssertionError("it never left the square")


def test_a_counter_observes_seed_step_and_episode() -> None:
    env = toy.Counter(terminate_at=2, success_key="success")
    env.reset(seed=5)
    action = np.zeros(1, np.float32)
    assert [env.step(action)[:3] for _ in range(2)][1][1:] == (2.0, True)
    assert env.reset()[0].tolist() == [5, 0, 1]
    assert env.step(action)[4] == {"success": True}


def test_a_fault_happens_at_its_step_in_its_environment_only() -> None:
    action = np.zeros(1, np.float32)
    spared = toy.Faulty("step_raise", at=1, only_seed=7)
    spared.reset(seed=6)
    spared.step(action)
    meant = toy.Faulty("step_raise", at=2, only_seed=7)
    meant.reset(seed=7)
    meant.step(action)
    with pytest.raises(ValueError, match="fails in step"):
        meant.step(action)
    with pytest.raises(ValueError, match="allowed init_raise"):
        toy.Faulty("unknown")
