"""Which number of threads a trial keeps, when another trial begins, and what a checkpoint remembers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from offpolicy.training.speed_tuner import (
    BLOCK_ITERATIONS,
    FEWEST_ITERATIONS,
    FIRST_PAUSE_S,
    MOST_ROUNDS,
    REPEATED,
    ROUNDS,
    SETTLING_ITERATIONS,
    URGENT,
    Choice,
    Setting,
    SpeedTuner,
    thread_numbers,
    trial,
    usual_s,
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


def neighbours(threads: int) -> float:
    """Two cores of which another program has one."""
    return {1: 0.010, 2: 0.090, 4: 0.300}[threads]


@pytest.mark.parametrize(
    ("cores", "numbers"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (6, (1, 2, 4, 6)), (64, (1, 2, 4, 8, 16))]
)
def test_powers_of_two_up_to_the_cores_are_tried(cores: int, numbers: tuple[int, ...]) -> None:
    assert thread_numbers(cores) == numbers


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


def test_a_disturbed_last_block_is_neither_reported_nor_remembered() -> None:
    machine = Machine(lambda threads: 0.0)
    disturbed = (1, MOST_ROUNDS - 1)  # rounds, for which the trial goes on until the last one

    def seconds_of(threads: int) -> float:
        is_disturbed = (len(machine.used) - 1) // BLOCK in [2 * index + 1 for index in disturbed]
        return 0.0060 if is_disturbed else {1: 0.0007, 2: 0.0006}[threads]

    machine.seconds_of = seconds_of
    tuner = machine.tuner((1, 2))
    machine.run(tuner, 2 * MOST_ROUNDS * BLOCK)
    assert not tuner.is_trying
    assert machine.tried_s == pytest.approx({Setting(1, "alternate"): 0.0007, Setting(2, "alternate"): 0.0006})
    machine.run(tuner, REPEATED - 1000)  # 11 s: longer than the pause between two trials
    assert set(machine.used[2 * MOST_ROUNDS * BLOCK :]) == {2}


def test_a_hopeless_number_is_tried_once() -> None:
    machine = Machine(two_cores)
    machine.run(machine.tuner((1, 2, 4)), 1000)
    assert machine.used.count(4) == BLOCK


def test_of_numbers_that_are_as_fast_the_fewest_threads_stay() -> None:
    machine = Machine(lambda threads: {1: 0.0101, 2: 0.0100}[threads])
    machine.run(machine.tuner((1, 2)), 1000)
    assert machine.choice.setting == Setting(1, "alternate")


def tried_until_known(*rounds: tuple[float, float]) -> tuple[Setting, int]:
    """The setting that a trial keeps of one and two threads, and its rounds; these are repeated."""
    running = trial((Setting(1, "overlap"), Setting(2, "overlap")))
    next(running)
    for index in itertools.count():
        for seconds in rounds[index % len(rounds)]:
            try:
                running.send(seconds)
            except StopIteration as end:
                return end.value, index + 1
    raise AssertionError


def test_a_clear_difference_is_known_after_few_rounds() -> None:
    assert tried_until_known((7.0, 6.0), (7.2, 6.1), (6.9, 6.0)) == (Setting(2, "overlap"), ROUNDS)
    assert tried_until_known((6.0, 7.0), (6.1, 7.2), (6.0, 6.9)) == (Setting(1, "overlap"), ROUNDS)


def test_a_difference_within_the_noise_is_tried_longer() -> None:
    """A machine that is faster in some rounds is compared with itself; noise within a round needs more of them."""
    assert tried_until_known((7.0, 6.5), (14.0, 13.0), (28.0, 26.0)) == (Setting(2, "overlap"), ROUNDS)
    chosen, num_rounds = tried_until_known((7.0, 6.0), (6.8, 6.3), (6.2, 6.4), (7.0, 6.2))
    assert chosen == Setting(2, "overlap")
    assert ROUNDS < num_rounds < MOST_ROUNDS


def test_an_outlier_in_one_block_decides_nothing() -> None:
    rounds = [(7.0, 6.0)] * 6 + [(7.0, 60.0)] + [(7.0, 6.0)] * 6
    assert tried_until_known((7.0, 6.0), (7.0, 60.0), *rounds) == (Setting(2, "overlap"), MOST_ROUNDS)


def test_an_iteration_that_evaluates_is_left_out() -> None:
    machine = Machine(two_cores)
    tuner = machine.tuner((1, 2))
    machine.run(tuner, BLOCK + 10)
    machine.run(tuner, 1, pause_s=30.0)  # beside two threads
    machine.run(tuner, 1000)
    assert machine.choice.setting == Setting(2, "alternate")


def test_iterations_are_compared_by_the_updates_they_make() -> None:
    machine = Machine(two_cores, updates_each=4)
    machine.run(machine.tuner((1, 2)), 1000)
    assert machine.reports[0][1].endswith("1 thread, alternate: 10.0, 2 threads, alternate: 6.0)")


def test_long_iterations_end_a_block_after_a_second() -> None:
    machine = Machine(lambda threads: 2.0 / threads)
    machine.run(machine.tuner((1, 2)), 2 * (FEWEST_ITERATIONS + SETTLING_ITERATIONS))
    assert machine.used.count(1) == FEWEST_ITERATIONS + SETTLING_ITERATIONS


def test_when_another_program_takes_a_core_the_numbers_are_tried_again_and_when_it_ends_too() -> None:
    machine = Machine(two_cores)
    tuner = machine.tuner((1, 2))
    machine.run(tuner, 3000)
    machine.seconds_of = neighbours
    machine.run(tuner, 3000)
    assert machine.choice.setting == Setting(1, "alternate")
    machine.seconds_of = two_cores  # one thread is as fast as it was: only a repeated trial finds the free core
    machine.run(tuner, REPEATED)
    assert machine.choice.setting == Setting(2, "alternate")
    assert [number for number, _ in machine.reports] == [2, 1, 2]


def test_a_change_that_does_not_last_begins_no_trial() -> None:
    machine = Machine(two_cores)
    tuner = machine.tuner((1, 2))
    machine.run(tuner, 3000)
    machine.seconds_of = neighbours
    machine.run(tuner, 20)  # 1.8 s
    machine.seconds_of = two_cores
    machine.run(tuner, 1000)
    assert set(machine.used[2 * ROUNDS * BLOCK :]) == {2}


def test_trials_that_change_nothing_become_rare() -> None:
    machine, slower = Machine(two_cores), 1.0
    tuner = machine.tuner((1, 2))
    machine.run(tuner, 1000)
    for _ in range(8):  # both numbers become slower, again and again
        slower *= 1.5
        machine.seconds_of = lambda threads, by=slower: by * two_cores(threads)
        machine.run(tuner, round(2 * FIRST_PAUSE_S / (slower * 0.006)))
    trials = sum(1 for before, now in zip(machine.used, machine.used[1:], strict=False) if (before, now) == (2, 1))
    assert 2 <= trials / (ROUNDS - 1) <= 5
    assert machine.reports[1:] == []


@pytest.mark.parametrize(("ratio", "is_urgent"), [(0.9 * URGENT, False), (1.1 * URGENT, True)])
def test_before_the_pause_is_over_only_much_slower_updates_begin_a_trial(ratio: float, is_urgent: bool) -> None:
    machine, slower = Machine(two_cores), 1.0
    tuner = machine.tuner((1, 2))
    machine.run(tuner, 1000)
    for _ in range(4):  # trials that change nothing: the pause after the last one is longer than a minute
        slower *= 1.5
        machine.seconds_of = lambda threads, by=slower: by * two_cores(threads)
        machine.run(tuner, round(200.0 / (slower * 0.006)))
    machine.seconds_of = lambda threads: slower * two_cores(threads) * (ratio if threads == 2 else 1.0)
    machine.run(tuner, round(15.0 / (slower * 0.006 * ratio)))
    assert machine.choice.setting == Setting(1 if is_urgent else 2, "alternate")


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


def test_a_trial_that_is_repeated_is_not_repeated_at_once() -> None:
    machine = Machine(two_cores, choice=Choice(Setting(2, "alternate"), REPEATED - 1))
    machine.run(machine.tuner((1, 2)), 3000)
    assert 0 < machine.used.count(1) < 1000
    assert machine.choice.iterations < 3000


def test_short_iterations_try_the_same_numbers_at_the_same_updates_whatever_they_take() -> None:
    one, other = Machine(two_cores), Machine(lambda threads: 1.6 * two_cores(threads))
    for machine in (one, other):
        machine.run(machine.tuner((1, 2)), 1000)
    assert one.used == other.used


@pytest.mark.parametrize(
    ("turns_ms", "overlap_ms", "kept"),
    [((13.0, 9.0), (8.0, 11.0), Setting(1, "overlap")), ((13.0, 10.1), (10.0, 10.0), Setting(2, "alternate"))],
    ids=["threads that are best in it", "turns that are as fast with more threads"],
)
def test_a_mode_is_chosen_with_its_threads(
    turns_ms: tuple[float, float], overlap_ms: tuple[float, float], kept: Setting
) -> None:
    machine = Machine(lambda threads: 0.0)
    ms = {"alternate": turns_ms, "overlap": overlap_ms}
    machine.seconds_of = lambda threads: ms[machine.mode][threads - 1] / 1000.0
    machine.run(machine.tuner((1, 2), ("alternate", "overlap")), 1000)
    assert machine.choice.setting == kept


def test_of_modes_that_are_as_fast_the_textbook_loop_stays() -> None:
    machine = Machine(lambda threads: 0.010)
    machine.run(machine.tuner((1,), ("alternate", "overlap")), 1000)
    assert machine.choice.setting == Setting(1, "alternate")


def test_threads_whose_updates_are_mostly_faster_but_slower_all_together_are_not_kept() -> None:
    """As where a collector takes the core of the second thread in every tenth update."""
    ticks = itertools.count()
    machine = Machine(lambda threads: 0.010 if threads == 1 else 0.040 if next(ticks) % 10 == 0 else 0.009)
    machine.run(machine.tuner((1, 2)), 30 * BLOCK)
    assert machine.threads == 1
    assert machine.tried_s[Setting(2, "alternate")] == pytest.approx(0.0115, abs=0.001)


def test_the_longest_of_twenty_iterations_is_left_out_because_it_may_save() -> None:
    assert usual_s([0.010] * 19 + [9.0]) == pytest.approx(0.010)
    assert usual_s([0.010] * 38 + [9.0, 9.0]) == pytest.approx(0.010)
    assert usual_s([0.010] * 37 + [0.1] * 3) == pytest.approx(0.010 * 37 / 38 + 0.1 / 38)
    assert usual_s([0.5, 0.7]) == 0.5
    assert usual_s([0.5]) == 0.5
