"""The vector of a task: seeds, resets of some, time limits, failures with a name, and a state that continues."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.env_adapter import VectorAdapter
from offpolicy.envs.state import EnvState, restore_state, save_state
from offpolicy.envs.vector import make_vector
from offpolicy.errors import CheckpointError, EnvFailure
from tests.beside_gymnasium import batch, cramped_hopper

TASKS = ("HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "Pusher-v5", "InvertedDoublePendulum-v5")


def adapter(
    env_id: str, num_envs: int = 4, vectorization: str = "mujoco", threads: int = 2, **kw: Any
) -> VectorAdapter:
    cfg = EnvConfig(id=env_id, num_envs=num_envs, vectorization=vectorization, kwargs=kw)
    return make_vector(cfg, num_threads=threads)


def played(vector: VectorAdapter, steps: int, seed: int = 0) -> NDArray[np.float64]:
    """Everything that random actions lead to, a row per step."""
    actions = np.random.default_rng(seed).uniform(-1, 1, (steps, vector.num_envs, vector.spec.action_dim))
    outcomes = [vector.step(action) for action in actions.astype(np.float32)]
    return np.array([np.concatenate([np.ravel(field) for field in outcome[:5]]) for outcome in outcomes])


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Reacher-v5"])
def test_it_makes_the_transitions_that_sync_makes(env_id: str) -> None:
    ours, theirs = (adapter(env_id, vectorization=way, max_episode_steps=9) for way in ("mujoco", "sync"))
    np.testing.assert_array_equal(ours.reset(3), theirs.reset(3))
    np.testing.assert_array_equal(played(ours, 30), played(theirs, 30))
    while not ours.was_done.any():
        np.testing.assert_array_equal(played(ours, 1), played(theirs, 1))
    where = ours.was_done | np.array([True, False, False, False])  # one that has ended begins before its next step
    np.testing.assert_array_equal(ours.reset_some(3, [8, 9, 8, 9], where), theirs.reset_some(3, [8, 9, 8, 9], where))
    np.testing.assert_array_equal(played(ours, 20), played(theirs, 20))


@pytest.mark.parametrize("env_id", TASKS)
def test_a_state_continues_bit_for_bit(env_id: str) -> None:
    first = adapter(env_id, max_episode_steps=14)
    first.reset(3)
    played(first, 5)
    first.reset_some(9, [0, 1, 0, 0], np.array([False, True, False, False]))  # so that not all end at once
    while not first.was_done.any():  # the next step resets some
        played(first, 1, seed=5)
    state = save_state(first)
    assert isinstance(state, EnvState), state
    wanted = played(first, 40, seed=1)
    second = adapter(env_id, threads=1, max_episode_steps=14)
    second.reset(77)
    played(second, 3)
    restore_state(second, state)
    np.testing.assert_array_equal(played(second, 40, seed=1), wanted)


def test_a_state_of_another_kind_is_refused_and_the_environments_are_new() -> None:
    other, own = adapter("Hopper-v5", vectorization="sync"), adapter("Hopper-v5", threads=2)
    other.reset(1)
    state = save_state(other)
    assert isinstance(state, EnvState), state
    with pytest.raises(CheckpointError, match="it was saved with vectorization 'sync'"):
        restore_state(own, state)
    np.testing.assert_array_equal(own.reset(1), adapter("Hopper-v5").reset(1))


def test_a_nan_in_the_controls_is_logged_once_with_the_environment(caplog: pytest.LogCaptureFixture) -> None:
    vector = batch("InvertedPendulum-v5", 4)
    vector.reset(seed=[5, 6, 7, 8])
    action = np.zeros((4, 1), np.float32)
    action[2] = np.nan
    with caplog.at_level(logging.WARNING):
        vector.step(action)
        vector.step(action)
    named = [record.message for record in caplog.records if "BADCTRL" in record.message]
    assert named == [
        "env 2 of 4 (InvertedPendulum-v5): MuJoCo warns of BADCTRL, seed 7, episode step 1, last action [nan]"
    ]


def test_an_error_of_mujoco_names_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cramped = tmp_path / "hopper.xml"
    cramped.write_text(cramped_hopper())
    vector = adapter("Hopper-v5", xml_file=str(cramped))
    with pytest.raises(EnvFailure) as caught:
        vector.reset(1)
    first, also, *_ = str(caught.value).splitlines()
    assert first.startswith("env 0 of 4 (Hopper-v5) failed in reset: seed ")
    assert ": MuJoCo: " in first
    assert "out of memory" in str(caught.value)
    assert also == "(so did envs [1, 2, 3] in the same reset)"
    with pytest.raises(
        EnvFailure, match=r"env 0 of 4 \(Hopper-v5\) failed in step: seed \d+, episode step 1, last act"
    ):
        vector.step(np.zeros((4, 3), np.float32))
