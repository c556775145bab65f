"""The task as Gymnasium environments: seeds, resets, states and options, one hand or many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.env_adapter import VectorAdapter
from offpolicy.envs.hand.env import HandRotation, HandRotationVector
from offpolicy.envs.hand.model import NUM_JOINTS
from offpolicy.envs.state import EnvState, restore_state, save_state
from offpolicy.envs.vector import make_vector
from offpolicy.errors import ConfigError

ENV_ID = "offpolicy.envs.hand:HandRotation-v1"


def adapter(num_envs: int = 4, vectorization: str = "mujoco", **kwargs: Any) -> VectorAdapter:
    return make_vector(EnvConfig(id=ENV_ID, num_envs=num_envs, vectorization=vectorization, kwargs=kwargs))


def played(vector: VectorAdapter, steps: int, seed: int = 0) -> NDArray[np.float64]:
    """Everything that random actions lead to, a row per step."""
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-1.0, 1.0, (steps, vector.num_envs, NUM_JOINTS)).astype(np.float32)
    outcomes = [vector.step(action) for action in actions]
    return np.array([np.concatenate([np.ravel(field) for field in outcome[:5]]) for outcome in outcomes])


@pytest.mark.filterwarnings("ignore:.*Box observation space")
def test_gymnasium_finds_nothing_wrong() -> None:
    check_env(HandRotation(), skip_render_check=True)


def test_many_hands_in_one_call_are_as_many_hands_one_after_another_beyond_the_end_of_an_episode() -> None:
    """The row of a reset drew pushes and noise of joints from the generator of the next episode."""
    runs = []
    for vectorization in ("mujoco", "sync"):
        vector = adapter(vectorization=vectorization, max_episode_steps=8)
        vector.reset(seed=3)
        runs.append(played(vector, 30))
    assert np.array_equal(*runs)


@pytest.mark.parametrize("vectorization", ["mujoco", "sync"])
def test_a_saved_state_continues_bit_for_bit(vectorization: str) -> None:
    first = adapter(vectorization=vectorization, max_episode_steps=25)
    first.reset(seed=1)
    played(first, 40)
    state = save_state(first)
    assert isinstance(state, EnvState), state
    expected = played(first, 60, seed=1)
    second = adapter(vectorization=vectorization, max_episode_steps=25)
    second.reset(seed=9)
    restore_state(second, state)
    assert np.array_equal(played(second, 60, seed=1), expected)


@pytest.mark.parametrize(("task", "drawn"), [("rotation", 8), ("spin", 7)])
def test_held_out_physics_reach_beyond_those_of_training(task: str, drawn: int) -> None:
    held_out, own = (
        HandRotationVector(300, physics=physics, task=task).reset(seed=0)[0]["privileged"][:, 3 : 3 + drawn]
        for physics in ("held_out", "train")
    )
    assert np.abs(own).max() <= 1.0 < np.abs(held_out).max(axis=0).min()


def test_the_net_rotation_of_an_episode_is_its_measure_however_it_is_stepped() -> None:
    observed = []
    for vectorization in ("sync", "mujoco"):
        cfg = EnvConfig(id=ENV_ID, kwargs={"max_episode_steps": 5}, vectorization=vectorization, measure="net_rotation")
        vector = make_vector(cfg, 2)
        vector.reset(3)
        rows = [vector.step(np.full((2, NUM_JOINTS), 0.5, np.float32)) for _ in range(5)]
        assert all(np.isnan(row.measure).all() for row in rows[:-1])
        observed.append(rows[-1].measure)
    assert np.array_equal(*observed)
    assert np.isfinite(observed[0]).all()


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"groups": ["obs", "vision"]}, r"^env\.kwargs\.groups: got .* allowed one or more of obs"),
        ({"render_mode": "rgb_array"}, r"^env\.kwargs\.render_mode: .* does not take it; "),
        ({"task": "juggle"}, r"^env\.kwargs\.task: got 'juggle', allowed one of rotation, spin"),
        ({"physics": "moon"}, r"^env\.kwargs\.physics: got 'moon', allowed one of train"),
        ({"hand": "shadow"}, r"^env\.kwargs\.hand: got 'shadow', allowed four_finger or leap"),
    ],
)
def test_a_wrong_option_says_what_is_allowed(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        adapter(**kwargs)


def test_one_hand_begins_an_episode_as_if_it_were_alone_and_the_others_do_not_notice() -> None:
    vector, alone = adapter(3), adapter(1)
    action = np.random.default_rng(0).uniform(-1, 1, (3, 16)).astype(np.float32)
    undisturbed = adapter(3)
    for each in (vector, undisturbed):
        each.reset(5)
        each.step(action)
    assert vector.can_reset_some
    obs = vector.reset_some(5, [0, 8, 0], np.array([False, True, False]))
    alone.reset(5)
    assert np.array_equal(obs[1:2], alone.reset_some(5, [8], np.array([True])))
    after, usual = vector.step(action), undisturbed.step(action)
    assert np.array_equal(after.next_obs[[0, 2]], usual.next_obs[[0, 2]])
    assert np.array_equal(after.next_obs[1:2], alone.step(action[1:2]).next_obs)
    assert after.is_valid.all()
