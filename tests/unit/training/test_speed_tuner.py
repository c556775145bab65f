"""Which number of threads a trial keeps, when another trial begins, and what a checkpoint remembers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from offpolicy.training.speed_tuner import (
    BLOCK_ITERATIONS,
    REPEATED,
    ROUNDS,
    SETTLING_ITERATIONS,
    Choice,
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
    threads: int = 0
    mode: str = ""
    now_s: float = 0.0
    updates: int = 0
    used: list[int] = field(default_factory=list)  # threads of each iteration
    reports: list[tuple[int, str]] = field(default_factory=list)
    tried_s: dict[Setting, float] = field(default_factory=dict)
    choice: Choice = field(default_factory=Choice)

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
            self.choice,
            lambda: round(self.now_s * 1e9),
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
    assert machine.used[: 2 * BLOCK] == [1] * BLOCK + [2] * BLOCK
    assert set(machine.used[2 * ROUNDS * BLOCK :]) == {2}
    assert machine.choice.setting == Setting(2, "alternate")
    assert machine.tried_s == pytest.approx({Setting(1, "alternate"): 0.010, Setting(2, "alternate"): 0.006})
    assert machine.reports == [
        (2, "fastest: 2 threads, alternate (ms per update with 1 thread, alternate: 10.0, 2 threads, alternate: 6.0)")
    ]


def test_of_numbers_that_are_as_fast_the_fewest_threads_stay() -> None:
    machine = Machine(lambda threads: {1: 0.0101, 2: 0.0100}[threads])
    machine.run(machine.tuner((1, 2)), 1000)
    assert machine.choice.setting == Setting(1, "alternate")


def test_a_resumed_run_keeps_the_number_of_its_checkpoint_without_a_trial() -> None:
    machine = Machine(two_cores, choice=Choice(Setting(1, "alternate")))
    machine.run(machine.tuner((1, 2)), 1000)
    assert set(machine.used) == {1}
    assert machine.reports == []


def test_a_resumed_run_tries_again_at_the_iteration_at_which_the_uninterrupted_one_does() -> None:
    whole, broken = Machine(two_cores), Machine(two_cores)
    whole.run(whole.tuner((1, 2)), REPEATED + 1000)
    broken.run(broken.tuner((1, 2)), 7000)
    broken.run(broken.tuner((1, 2)), REPEATED + 1000 - 7000)  # another tuner, with the choice of the first
    assert broken.used == whole.used
