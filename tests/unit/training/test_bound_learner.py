"""The two threads of an update have a core each; whatever else the process does has both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch

from offpolicy.training.bound_learner import BoundLearner, can_bind, run_in_threads, second_thread


class Recorder:
    """A learner whose updates note on which cores each of OpenMP's threads may run."""

    def __init__(self) -> None:
        self.cpus: dict[int, set[int]] = {}
        self.during: Callable[[], None] = lambda: None

    def update(self, batch: object, /) -> None:
        self.cpus = cpus_of_threads()
        self.during()


def cpus_of_threads() -> dict[int, set[int]]:
    """Returns the cores of this thread, 0, and of the other one of OpenMP's threads, 1."""
    found: dict[int, set[int]] = {}
    run_in_threads(2, lambda number: found.__setitem__(number, os.sched_getaffinity(0)))
    return found


def bind_both(cpus: set[int]) -> None:
    """As `taskset --all-tasks` does."""
    second = second_thread()
    assert second is not None
    assert can_bind(0, cpus)
    assert can_bind(second, cpus)


@pytest.fixture
def two_cores() -> Iterator[set[int]]:
    """Lets this thread use two cores, and torch two threads, in one test."""
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    if len(before) < 2:
        pytest.skip("this process may use one core")
    if second_thread() is None:
        pytest.skip("torch does not use libgomp here")
    cpus = set(sorted(before)[:2])
    bind_both(cpus)
    yield cpus
    bind_both(before)
    torch.set_num_threads(threads)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_each_thread_of_an_update_has_a_core_and_everything_else_has_both(
    two_cores: set[int], recorder: Recorder
) -> None:
    first, second = sorted(two_cores)
    bound = BoundLearner(recorder)
    bound.use_threads(2)
    assert torch.get_num_threads() == 2
    assert cpus_of_threads() == {0: two_cores, 1: {second}}
    bound.update(None)
    assert recorder.cpus == {0: {first}, 1: {second}}
    assert cpus_of_threads() == {0: two_cores, 1: {second}}


@pytest.mark.parametrize("threads", [1, 3])
def test_another_number_of_threads_is_not_bound(threads: int, two_cores: set[int], recorder: Recorder) -> None:
    bound = BoundLearner(recorder)
    bound.use_threads(2)
    bound.use_threads(threads)
    bound.update(None)
    assert recorder.cpus == {0: two_cores, 1: two_cores}
    assert torch.get_num_threads() == threads


def test_both_threads_follow_when_somebody_takes_a_core_from_the_process(
    two_cores: set[int], recorder: Recorder
) -> None:
    bound = BoundLearner(recorder)
    bound.use_threads(2)
    os.sched_setaffinity(0, only := {min(two_cores)})
    bound.update(None)
    assert recorder.cpus == {0: only, 1: only}
    os.sched_setaffinity(0, two_cores)
    bound.update(None)
    assert recorder.cpus == {0: {min(two_cores)}, 1: {max(two_cores)}}


def test_the_cores_are_given_back_when_an_update_fails(two_cores: set[int], recorder: Recorder) -> None:
    def fail() -> None:
        raise RuntimeError("the loss is not finite")

    bound = BoundLearner(recorder)
    bound.use_threads(2)
    recorder.during = fail
    with pytest.raises(RuntimeError, match="not finite"):
        bound.update(None)
    assert os.sched_getaffinity(0) == two_cores
