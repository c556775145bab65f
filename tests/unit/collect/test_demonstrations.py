"""Demonstrations as replay rows, and recorded from a policy: the same rows that the collector would have written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from offpolicy.collect.demonstrations import Recorder, demonstration_rows
from offpolicy.collect.evaluation import Watch, run_episodes
from offpolicy.config.schema import EnvConfig
from offpolicy.envs.probe import probe
from offpolicy.errors import SaveError
from offpolicy.replay.demonstrations import Transitions, read_demos
from offpolicy.replay.row_layout import RowLayout
from offpolicy.types import Float32

LAYOUT = RowLayout(obs_dim=1, action_dim=1)
GAMMA = 0.5
PENDULUM = EnvConfig(id="Pendulum-v1", kwargs={"max_episode_steps": 7})


def transitions(*lengths: int, terminated: tuple[int, ...] = ()) -> Transitions:
    """Episodes whose observations count from 10, 20, ..., with a reward of 1, 2, 3, ... over all rows."""
    obs = np.concatenate([10.0 * (n + 1) + np.arange(length) for n, length in enumerate(lengths)])
    first = np.cumsum((0, *lengths))[:-1]
    count, last = len(obs), np.cumsum(lengths) - 1
    ends = np.isin(np.arange(count), last[list(terminated)] if terminated else [])
    return Transitions(
        obs=obs[:, None].astype(np.float32),
        action=np.zeros((count, 1), np.float32),
        reward=1.0 + np.arange(count),
        next_obs=(obs[:, None] + 1).astype(np.float32),
        terminated=ends,
        truncated=np.isin(np.arange(count), last) & ~ends,
        first=first,
    )


def rows(found: Transitions, n_step: int) -> dict[float, list[float]]:
    """By first observation: the last, the reward, terminated, truncated and the discount."""
    made = demonstration_rows(found, LAYOUT, gamma=GAMMA, n_step=n_step)
    return {float(row[0]): [float(row[1]), *map(float, row[3:])] for row in made}


def test_with_one_step_a_row_is_a_transition() -> None:
    assert rows(transitions(2, 1, terminated=(1,)), 1) == {
        10.0: [11.0, 1.0, 0.0, 0.0, 0.5],
        11.0: [12.0, 2.0, 0.0, 1.0, 0.5],
        20.0: [21.0, 3.0, 1.0, 0.0, 0.5],
    }


def test_with_more_steps_a_row_sums_until_its_episode_ends_and_never_beyond() -> None:
    found = rows(transitions(4, 1, 2, terminated=(0,)), 3)
    assert found == {
        10.0: [13.0, 1 + 2 / 2 + 3 / 4, 0.0, 0.0, 0.125],
        11.0: [14.0, 2 + 3 / 2 + 4 / 4, 1.0, 0.0, 0.125],
        12.0: [14.0, 3 + 4 / 2, 1.0, 0.0, 0.25],
        13.0: [14.0, 4.0, 1.0, 0.0, 0.5],
        20.0: [21.0, 5.0, 0.0, 1.0, 0.5],
        30.0: [32.0, 6 + 7 / 2, 0.0, 1.0, 0.25],
        31.0: [32.0, 7.0, 0.0, 1.0, 0.5],
    }


@pytest.mark.parametrize("n_step", [1, 2, 5, 64])
def test_every_transition_begins_exactly_one_row(n_step: int) -> None:
    assert len(rows(transitions(9, 1, 8, 4), n_step)) == 22


def swing(obs: Float32) -> Float32:
    return np.clip(3.0 * obs[:, 2:], -1.0, 1.0).astype(np.float32)


def test_what_was_recorded_is_what_happened(tmp_path: Path) -> None:
    """More episodes than environments side by side, so that some are reset and some have nothing left to do."""
    spec = probe(PENDULUM)
    recorder = Recorder(spec)
    found = run_episodes(swing, PENDULUM, episodes=21, seed=3, watch=Watch(on_end=recorder))
    assert recorder.save(tmp_path / "demos.npz") == 21 * 7
    read = read_demos(str(tmp_path / "demos.npz"), spec)
    read.require_sequences("algo.n_step")
    assert read.length.tolist() == [7] * 21
    np.testing.assert_allclose(read.ep_return, found.ep_return)
    np.testing.assert_allclose(read.action, swing(read.obs), atol=1e-6)
    assert read.truncated.sum() == 21


def downhill(obs: Float32) -> Float32:
    """Pushes a car in the direction in which it rolls."""
    return np.where(obs[:, 1:] >= 0.0, 0.8, -0.8).astype(np.float32)


def test_episodes_that_end_before_others_side_by_side_are_recorded_to_their_end_only(tmp_path: Path) -> None:
    env = EnvConfig(id="MountainCarContinuous-v0")
    spec = probe(env)
    recorder = Recorder(spec)
    found = run_episodes(downhill, env, episodes=4, seed=5, watch=Watch(on_end=recorder))
    recorder.save(tmp_path / "demos.npz")
    read = read_demos(str(tmp_path / "demos.npz"), spec)
    assert len(set(found.length)) > 1
    assert read.length.tolist() == found.length.tolist()
    assert (read.terminated.sum(), read.truncated.sum()) == (4, 0)


def test_watching_changes_nothing() -> None:
    watched = run_episodes(swing, PENDULUM, episodes=3, seed=3, watch=Watch(on_end=Recorder(probe(PENDULUM))))
    np.testing.assert_array_equal(watched.ep_return, run_episodes(swing, PENDULUM, episodes=3, seed=3).ep_return)


def test_a_disk_that_refuses_leaves_no_half_file(tmp_path: Path) -> None:
    recorder = Recorder(probe(PENDULUM))
    run_episodes(swing, PENDULUM, episodes=1, seed=3, watch=Watch(on_end=recorder))
    with pytest.raises(SaveError):
        recorder.save(tmp_path / "nowhere" / "demos.npz")
    assert list(tmp_path.iterdir()) == []
