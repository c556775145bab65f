"""The source of rollouts: each is handed out once, whichever is there first, and never when its weights are too old."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from offpolicy.replay.rollout_ring import RolloutLayout, RolloutRing, RolloutStamp
from offpolicy.replay.rollout_source import NO_LIMIT, RolloutSource, RolloutSpec
from offpolicy.types import NUM_LAGS

LAYOUT = RolloutLayout(obs_dim=1, action_dim=1, length=2, num_envs=2)
CPU = torch.device("cpu")


@dataclass
class Run:
    """The gate, the env steps and the published version, as the source sees them."""

    version: int = 0
    of_other_ranks: int = 0
    rings: int = 0
    have_all_begun: bool = True
    granted: list[int] = field(default_factory=list)
    asked: list[bool] = field(default_factory=list)

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        self.asked.append(is_true())

    def grant_each(self, rollouts: int) -> None:
        self.granted.append(rollouts)

    def wake_collectors(self) -> None:
        self.rings += 1


def make(num_rings: int = 1, mode: str = "free", max_lag: int = 64, total: int = 100) -> tuple[
    RolloutSource, list[RolloutRing], Run
]:  # fmt: skip
    run, num_slots = Run(), 3
    rings = [
        RolloutRing(memoryview(bytearray(RolloutRing.nbytes(LAYOUT, num_slots))), LAYOUT, num_slots)
        for _ in range(num_rings)
    ]
    spec = RolloutSpec(LAYOUT, mode, max_lag, total, CPU)
    source = RolloutSource(spec, rings, run, lambda: run.version, lambda own: own + run.of_other_ranks)
    return source, rings, run


def put(ring: RolloutRing, value: float, version: int = 0, num_steps: int = 4) -> None:
    ring.reserve()[:] = value
    assert ring.commit(RolloutStamp(ring.committed, version, num_steps))


def sample(source: RolloutSource) -> torch.Tensor:
    """The next batch, as the loop gets it."""
    source.wait_ready()
    return source.sample()


def columns(source: RolloutSource) -> list[float]:
    """Returns the number that each environment of the next batch holds for a whole rollout."""
    rows = sample(source)
    assert rows.shape == (3, rows.shape[1], LAYOUT.width)
    assert (rows == rows[:1, :, :1]).all()
    return rows[0, :, 0].tolist()


def test_a_batch_is_one_rollout_of_each_ring_side_by_side() -> None:
    source, (first, second), _ = make(num_rings=2)
    put(first, 1.0)
    put(second, 2.0)
    assert columns(source) == [1.0, 1.0, 2.0, 2.0]
    assert (first.unread, second.unread) == (0, 0)


def test_where_a_ring_is_late_the_others_fill_the_batch_and_the_next_one_begins_after_the_last_ring() -> None:
    source, (first, second), _ = make(num_rings=2)
    for value in (1.0, 2.0, 3.0):
        put(first, value)
    assert columns(source) == [1.0, 1.0, 2.0, 2.0]
    put(second, 9.0)
    assert columns(source) == [9.0, 9.0, 3.0, 3.0]


def test_transitions_and_the_lag_of_each_rollout_are_counted_the_largest_ones_together() -> None:
    source, (ring,), run = make()
    for lag in (0, 2, 2, NUM_LAGS - 2, NUM_LAGS + 5, NUM_LAGS + 6):
        run.version = 40
        put(ring, 0.0, version=40 - lag, num_steps=3)
        sample(source)
    assert (source.samples, source.sample_age_sum) == (18, 0.0)  # transitions, not rows
    lags = dict.fromkeys(range(NUM_LAGS), 0) | {0: 1, 2: 2, NUM_LAGS - 2: 1, NUM_LAGS - 1: 2}
    assert source.rollouts.lags.tolist() == list(lags.values())


def test_rollouts_of_weights_that_are_too_old_are_left_out_and_counted() -> None:
    source, (ring,), run = make(max_lag=2)
    run.version = 10
    for value, version in ((1.0, 6), (2.0, 7), (3.0, 8)):
        put(ring, value, version=version)
    source.wait_ready()
    assert columns(source) == [3.0, 3.0]
    assert (source.rollouts.too_old, source.rollouts.lags[2], source.rollouts.lags.sum()) == (2, 1, 1)


def test_no_batch_is_handed_out_in_part() -> None:
    source, (first, second), run = make(num_rings=2, max_lag=0)
    run.version = 1
    put(first, 1.0, version=1)
    put(second, 2.0, version=0)
    source.wait_ready()
    assert run.asked == [False]
    assert (first.unread, second.unread, source.samples) == (1, 0, 0)
    put(second, 3.0, version=1)
    source.wait_ready()
    assert run.asked == [False, True]
    assert columns(source) == [1.0, 1.0, 3.0, 3.0]


def test_a_batch_that_was_found_ready_is_there_although_newer_weights_appear_meanwhile() -> None:
    source, (ring,), run = make(max_lag=0)
    put(ring, 1.0, version=0)
    source.wait_ready()
    run.version = 1  # another rank has published
    assert not source.is_exhausted()
    assert source.sample()[0, :, 0].tolist() == [1.0, 1.0]


def test_the_run_ends_once_all_ranks_have_learnt_from_its_env_steps_and_nothing_is_granted_then() -> None:
    source, (ring,), run = make(total=12)
    ended = []
    for of_other_ranks in (0, 3, 4):
        put(ring, 1.0, num_steps=4)
        sample(source)
        run.of_other_ranks = of_other_ranks
        source.release()
        ended.append(source.is_exhausted())
    assert (ended, run.granted) == ([False, False, True], [NO_LIMIT, NO_LIMIT, 0])


def test_at_its_goal_a_run_waits_for_the_env_steps_that_its_collectors_begin_from() -> None:
    source, _, run = make(total=4)
    source.set_random_state({"learnt": 4})
    source.release()
    run.have_all_begun = False
    source.wait_ready()
    run.have_all_begun = True
    source.wait_ready()
    assert run.asked == [False, True]


def test_a_resumed_rank_continues_counting() -> None:
    source, (ring,), _ = make(total=100)
    put(ring, 1.0, num_steps=3)
    sample(source)
    resumed, _, _ = make(total=3)
    ended = []
    for state in ({"learnt": 0}, source.random_state()):
        resumed.set_random_state(state)
        resumed.release()
        ended.append(resumed.is_exhausted())
    assert ended == [False, True]


@pytest.mark.parametrize(
    ("mode", "granted"), [("alternate", [1, 2, 3]), ("overlap", [2, 3, 4]), ("free", [NO_LIMIT] * 3)]
)
def test_each_collector_may_begin_what_the_mode_allows_beyond_what_was_learnt_from(
    mode: str, granted: list[int]
) -> None:
    source, (ring,), run = make(mode=mode)
    source.release()
    for _ in range(2):
        put(ring, 1.0)
        sample(source)
        source.release()
    assert run.granted == granted


def test_the_device_gets_the_columns_as_fields_and_the_share_of_the_run() -> None:
    source, (ring,), run = make(total=80)
    ring.reserve()[:] = np.arange(3 * 2 * 7, dtype=np.float32).reshape(3, 2, 7)
    ring.commit(RolloutStamp(0, 0, 4))
    run.of_other_ranks = 20
    source.release()
    batch = source.to_device(sample(source))
    assert (batch.progress, batch.env_steps) == (0.25, 20)
    assert batch.obs.tolist() == [[[0], [7]], [[14], [21]], [[28], [35]]]
    assert batch.action.tolist() == [[[1], [8]], [[15], [22]]]
    scalars = (batch.log_prob, batch.reward, batch.terminated, batch.truncated, batch.is_valid)
    for index, column in enumerate(scalars, start=2):
        assert column.tolist() == [[index, 7 + index], [14 + index, 21 + index]]
