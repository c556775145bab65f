"""Which number of threads the trial at the start of a run keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from offpolicy.training.speed_tuner import (
    BLOCK_ITERATIONS,
    ROUNDS,
    SETTLING_ITERATIONS,
    Setting,
    SpeedTuner,
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

    def tuner(self, numbers: tuple[int, ...], modes: tuple[str, ...] = ("alternate",)) -> SpeedTuner:
        return SpeedTuner(
            [Setting(number, mode) for number in numbers for mode in modes],
            self.apply,
            self.report,
            lambda: self.updates,
            now_ns=lambda: round(self.now_s * 1e9),
        )

    def run(self, tuner: SpeedTuner, iterations: int, pause_s: float = 0.0) -> None:
        for _ in range(iterations):
            self.used.append(self.threads)
            self.now_s += self.updates_each * self.seconds_of(self.threads) + pause_s
            self.updates += self.updates_each
            tuner.run_if_due()


def two_cores(threads: int) -> float:
    return {1: 0.010, 2: 0.006, 4: 0.020}[threads]


def test_powers_of_two_up_to_the_cores_are_tried() -> None:
    assert [thread_numbers(cores) for cores in (1, 3, 6)] == [(1,), (1, 2, 3), (1, 2, 4, 6)]


def test_the_fastest_number_stays_and_is_reported_once() -> None:
    machine = Machine(two_cores)
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


def test_a_single_setting_is_not_tried() -> None:
    machine = Machine(two_cores)
    machine.run(machine.tuner((2,)), 1000)
    assert (set(machine.used), machine.reports) == ({1}, [])
