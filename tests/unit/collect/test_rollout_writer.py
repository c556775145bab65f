"""A rollout's contents, when it may begin, and its end when the collector cannot wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from offpolicy.collect.replay_writer import BadRowError
from offpolicy.collect.rollout_writer import FIRST_VERSION, RolloutWriter
from offpolicy.replay.rollout_ring import RolloutLayout, RolloutRing, RolloutStamp
from offpolicy.types import PolicyOutput, StepOutcome

LAYOUT = RolloutLayout(obs_dim=1, action_dim=1, length=2, num_envs=2)
NAN, INF = float("nan"), float("inf")


class Scene:
    """A writer, its ring and the newest version of the weights."""

    def __init__(self, num_slots: int = 2, *, may_drop: bool = False, newest: int = 0) -> None:
        self.newest = newest
        buffer = memoryview(bytearray(RolloutRing.nbytes(LAYOUT, num_slots)))
        self.ring = RolloutRing(buffer, LAYOUT, num_slots)
        self.writer = RolloutWriter(self.ring, may_drop=may_drop, newest_version=lambda: self.newest)

    def write(self, time: float, *, version: int = 0, action: Sequence[float] = (0.0, 0.0), **fields: Any) -> int:
        """One step from the observation (time, 100 + time) to (time + 1, 101 + time)."""
        next_obs = fields.pop("next_obs", [time + 1, time + 101])
        obs = fields.pop("obs", [time, time + 100])
        log_prob = fields.pop("log_prob", [-1.0, -2.0])
        given = {"reward": [0.0, 0.0], "terminated": [False] * 2, "truncated": [False] * 2, "is_valid": [True] * 2}
        given |= fields
        outcome = StepOutcome(
            next_obs=np.array(next_obs, np.float32)[:, None],
            success=np.full(2, np.nan, np.float32),
            measure=np.full(2, np.nan, np.float32),
            **{name: np.array(values) for name, values in given.items()},
        )
        output = PolicyOutput(np.array(action, np.float32)[:, None], np.array(log_prob, np.float32), version)
        return self.writer.write(np.array(obs, np.float32)[:, None], output, outcome)

    def rollout(self, time: float = 0.0, version: int = 0) -> None:
        """A whole one of two steps."""
        self.write(time, version=version)
        self.write(time + 1, version=version)

    def taken(self) -> tuple[RolloutStamp, list[list[list[float]]]]:
        """The stamp and the rows [T + 1, N, W] of the oldest rollout."""
        out = np.empty(LAYOUT.shape, np.float32)
        return self.ring.take(out), out.tolist()


def test_a_rollout_holds_every_step_and_the_observation_it_ended_in() -> None:
    scene = Scene()
    assert scene.write(0, action=(0.5, -0.5), log_prob=[-1, -2], reward=[3.0, 4.0], terminated=[False, True]) == 2
    assert scene.ring.unread == 0
    scene.write(1, action=(0.25, -0.25), log_prob=[-3, -4], reward=[5.0, 6.0], truncated=[True, False])
    _, rows = scene.taken()
    # obs, action, log_prob, reward, terminated, truncated, is_valid
    assert rows == [
        [[0, 0.5, -1, 3, 0, 0, 1], [100, -0.5, -2, 4, 1, 0, 1]],
        [[1, 0.25, -3, 5, 0, 1, 1], [101, -0.25, -4, 6, 0, 0, 1]],
        [[2, 0, 0, 0, 0, 0, 0], [102, 0, 0, 0, 0, 0, 0]],
    ]


def test_reset_rows_are_kept_but_marked_and_not_counted() -> None:
    scene = Scene()
    assert scene.write(0, terminated=[True, False]) == 2
    assert scene.write(1, is_valid=[False, True]) == 1
    stamp, rows = scene.taken()
    assert [[row[-1] for row in step] for step in rows] == [[1, 1], [0, 1], [0, 0]]
    assert rows[1][0][0] == 1.0  # the final observation of the episode
    assert stamp.num_steps == 3


def test_new_weights_are_taken_at_the_start_of_a_rollout_only() -> None:
    scene, seen = Scene(), []
    for time in range(4):
        seen.append(scene.writer.wants_fresh_policy(1))
        scene.write(time)
    assert seen == [True, False, True, False]


def test_grants_count_rollouts_and_each_wakes_the_learner() -> None:
    scene, seen = Scene(num_slots=4), []
    for time in range(4):
        seen.append((scene.writer.handed_over(99), scene.writer.may_step(99, granted=1)))
        scene.write(time)
    assert seen == [(0, True), (0, True), (1, False), (1, False)]


def test_a_new_rollout_waits_for_a_slot_and_an_open_one_continues() -> None:
    scene = Scene(num_slots=2)
    scene.rollout()
    scene.write(2)
    assert scene.writer.may_step(6, granted=9)
    scene.write(3)
    assert not scene.writer.may_step(8, granted=9)
    scene.taken()
    assert scene.writer.may_step(8, granted=9)


def test_nothing_is_collected_once_nothing_is_granted_not_even_the_rest_of_a_rollout() -> None:
    scene = Scene()
    scene.write(0)
    assert (scene.writer.may_step(2, granted=1), scene.writer.may_step(2, granted=0)) == (True, False)


def test_a_collector_that_may_drop_never_waits_and_says_what_it_dropped() -> None:
    scene = Scene(num_slots=1, may_drop=True)
    for time in range(0, 6, 2):
        assert scene.writer.may_step(2 * time, granted=2)  # what is dropped is made again
        scene.rollout(time)
    assert (scene.writer.rollout_counts(), scene.ring.unread) == ((3, 2), 1)
    assert scene.taken()[0].number == 0
    scene.rollout(6)
    assert scene.taken()[0].number == 3


@pytest.mark.parametrize("name", ["reward", "obs", "next_obs", "log_prob"])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_rollout_with_nan_or_inf_is_refused_by_field_and_environment(name: str, bad: float) -> None:
    scene = Scene()
    scene.write(0)
    with pytest.raises(BadRowError, match=f"^NaN or Inf in {name} of environment 1$") as caught:
        scene.write(1, **{name: [1.0, bad]})
    assert (caught.value.envs, caught.value.num_stored) == ((1,), 0)
    scene.writer.abandon(caught.value.envs)  # the next one begins again
    scene.rollout(20)
    assert (scene.ring.unread, scene.taken()[1][0][0][0]) == (1, 20.0)


def test_waiting_and_open_rollouts_survive_a_snapshot_with_their_lag() -> None:
    scene, copy = Scene(newest=9), Scene(newest=3)
    scene.rollout(0, version=7)
    scene.write(2, version=8, is_valid=[True, False])
    rows, facts = scene.writer.open_windows()
    assert (rows.shape, facts.tolist()) == ((8, 7), [[6, 2, 4], [2, 1, 1]])
    copy.writer.reopen_windows(rows, facts)
    assert (copy.ring.unread, copy.writer.wants_fresh_policy(1), copy.writer.handed_over(7)) == (1, False, 1)
    for each in (scene, copy):
        each.write(3, version=50)
    for expected_lag in (2, 1):
        (stamp, got), (restored, same) = scene.taken(), copy.taken()
        assert same == got
        # What was the newest then is the first that the new learner publishes.
        assert (9 - stamp.version, FIRST_VERSION - restored.version) == (expected_lag, expected_lag)
        assert (restored.number, restored.num_steps) == (stamp.number, stamp.num_steps)
