"""Returns are raw, lengths count transitions, reset rows count nothing."""

from __future__ import annotations

import numpy as np
import pytest

from offpolicy.collect.episodes import EpisodeTracker, pack_episodes, unpack_episodes
from offpolicy.types import StepOutcome


def outcome(
    reward: list[float], done: list[bool], is_valid: list[bool], truncated: list[bool] | None = None
) -> StepOutcome:
    count = len(reward)
    return StepOutcome(
        next_obs=np.zeros((count, 1), dtype=np.float32),
        reward=np.array(reward),
        terminated=np.array(done),
        truncated=np.array(truncated or [False] * count),
        is_valid=np.array(is_valid),
        success=np.array([1.0] * count, dtype=np.float32),
        measure=np.full(count, np.nan, dtype=np.float32),
    )


@pytest.mark.promise("raw-return")
def test_an_episode_is_reported_with_its_raw_return_and_length() -> None:
    tracker = EpisodeTracker(2)
    assert tracker.update(outcome([1.5, -1.0], [False, False], [True, True]), 2) == []
    [record] = tracker.update(outcome([2.5, -1.0], [True, False], [True, True]), 4)
    assert (record.ep_return, record.ep_length, record.env_index, record.env_steps) == (4.0, 2, 0, 4)
    assert (record.terminated, record.truncated, record.success) == (True, False, 1.0)


def test_an_episode_that_a_time_limit_ends_is_reported_as_truncated() -> None:
    [record] = EpisodeTracker(1).update(outcome([1.0], [False], [True], truncated=[True]), 1)
    assert (record.terminated, record.truncated) == (False, True)


@pytest.mark.promise("reset-rows")
def test_the_reset_row_belongs_to_no_episode() -> None:
    tracker = EpisodeTracker(1)
    tracker.update(outcome([1.0], [True], [True]), 1)
    tracker.update(outcome([99.0], [False], [False]), 1)
    [record] = tracker.update(outcome([3.0], [True], [True]), 2)
    assert (record.ep_return, record.ep_length) == (3.0, 1)


def test_records_survive_the_shared_ring() -> None:
    tracker = EpisodeTracker(1)
    records = tracker.update(outcome([1.25], [True], [True]), 7)
    assert list(unpack_episodes(pack_episodes(records))) == records
