"""Which number of threads the trial at the start of a run keeps, and that two threads have a core each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from offpolicy.training.tuning import (
    BLOCK_ITERATIONS,
    ROUNDS,
    SETTLING_ITERATIONS,
    BoundLearner,
    Setting,
    can_bind,
    run_in_threads,
    second_thread,
    speed_trial,
    thread_numbers,
)

BLOCK = BLOCK_ITERATIONS + SETTLING_ITERATIONS


@dataclass
class Machine:
    """A machine on which an update takes `seconds_of(threads)`; iterations make `updates_each` updates."""

    seconds_of: Callable[[int], float]
    updates_each: int = 1
    threads: int = 1  # at the start
    mode: str = ""
    now_s: float = 0.0
    updates: int = 0
    used: list[int] = field(default_factory=list)  # threads of each iteration
    reports: list[tuple[int, str]] = field(default_factory=list)
    tried_s: dict[Setting, float] = field(default_factory=dict)

    def apply(self, setting: Setting) -> None:
        self.threads, self.mode = setting

    def report(self, setting: Setting, text: str, tried_s: Mapping[Setting, float]) -> None:
        self.reports.append((setting.threads, text))
        self.tried_s = dict(tried_s)

    def tuner(self, numbers: tuple[int, ...], modes: tuple[str, ...] = ("alternate",)) -> Iterator[None]:
        return speed_trial(
            [Setting(number, mode) for number in numbers for mode in modes], self.apply, self.report,
            lambda: self.updates, now_ns=lambda: round(self.now_s * 1e9),
        )  # fmt: skip

    def run(self, tuner: Iterator[None], iterations: int, pause_s: float = 0.0) -> None:
        for _ in range(iterations):
            self.used.append(self.threads)
            self.now_s += self.updates_each * self.seconds_of(self.threads) + pause_s
            self.updates += self.updates_each
            next(tuner, None)


def two_core_seconds(threads: int) -> float:
    return {1: 0.010, 2: 0.006, 4: 0.020}[threads]


def test_powers_of_two_up_to_the_cores_are_tried() -> None:
    assert [thread_numbers(cores) for cores in (1, 3, 6)] == [(1,), (1, 2, 3), (1, 2, 4, 6)]


def test_the_fastest_number_stays_and_is_reported_once() -> None:
    machine = Machine(two_core_seconds)
    machine.run(machine.tuner((1, 2)), 1000)
    assert machine.used[1:] == ([1] * BLOCK + [2] * BLOCK) * ROUNDS + [2] * (999 - 2 * ROUNDS * BLOCK)
    assert machine.tried_s == pytest.approx({Setting(1, "alternate"): 0.010, Setting(2, "alternate"): 0.006})
    assert machine.reports == [
        (2, "fastest: 2 threads, alternate (ms per update with 1 thread, alternate: 10.0, 2 threads, alternate: 6.0)")
    ]


def test_of_numbers_that_are_as_fast_the_fewest_threads_stay() -> None:
    machine = Machine(lambda threads: {1: 0.0101, 2: 0.0100}[threads])
    machine.run(machine.tuner((1, 2)), 1000)
    assert (machine.threads, len(machine.reports)) == (1, 1)


def test_long_iterations_end_a_block_early_and_one_that_saves_does_not_count() -> None:
    """Of three iterations of 0.4 s the longest, which saves, is left out."""
    machine = Machine(lambda threads: 0.4 / threads)
    tuner = machine.tuner((1, 2))
    machine.run(tuner, 1 + SETTLING_ITERATIONS + 2)
    machine.run(tuner, 1, pause_s=9.0)
    machine.run(tuner, 200)
    assert machine.tried_s == pytest.approx({Setting(1, "alternate"): 0.4, Setting(2, "alternate"): 0.2})


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


def bound_to_two(recorder: Any) -> BoundLearner:
    bound = BoundLearner(recorder)
    bound.use_threads(2)
    return bound


def update(bound: BoundLearner) -> None:
    batch: Any = None
    bound.update(batch)


def test_each_thread_of_an_update_has_a_core_and_everything_else_has_both(
    two_cores: set[int], recorder: Recorder
) -> None:
    first, second = sorted(two_cores)
    bound = bound_to_two(recorder)
    assert torch.get_num_threads() == 2
    assert cpus_of_threads() == {0: two_cores, 1: {second}}
    update(bound)
    assert recorder.cpus == {0: {first}, 1: {second}}
    assert cpus_of_threads() == {0: two_cores, 1: {second}}


def test_both_threads_follow_when_a_core_is_taken_from_the_process(two_cores: set[int], recorder: Recorder) -> None:
    bound = bound_to_two(recorder)
    os.sched_setaffinity(0, only := {min(two_cores)})
    update(bound)
    assert recorder.cpus == {0: only, 1: only}
    os.sched_setaffinity(0, two_cores)
    update(bound)
    assert recorder.cpus == {0: {min(two_cores)}, 1: {max(two_cores)}}


def test_the_cores_are_given_back_when_an_update_fails(two_cores: set[int], recorder: Recorder) -> None:
    def fail() -> None:
        raise RuntimeError("the loss is not finite")

    bound = bound_to_two(recorder)
    recorder.during = fail
    with pytest.raises(RuntimeError, match="not finite"):
        update(bound)
    assert os.sched_getaffinity(0) == two_cores
