from __future__ import annotations

import pytest

from offpolicy.processes.control_page import CollectorWord, ControlPage, EvaluatorWord, RankWord
from offpolicy.processes.watchdog import Watchdog

STEP_S = 10.0  # env.step_timeout_s
START_S = 120.0  # runner.start_timeout_s
PAIR = [("learner", 0), ("collector", 0)]


class Clock:
    """A clock that stands still between `tick`s."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """A watchdog over one learner, one collector and the evaluator, checked every second."""

    def __init__(self, peer_timeout_s: float = 0.0, replay_s: float = 0.0) -> None:
        self.clock = Clock()
        self.control = ControlPage(memoryview(bytearray(ControlPage.nbytes(1, 1))), 1, 1)
        self.watchdog = Watchdog(self.control, self.clock, peer_timeout_s, START_S, replay_s)
        self.words = {
            "learner": (self.control.leader, RankWord),
            "collector": (self.control.collectors[0], CollectorWord),
            "evaluator": (self.control.evaluator, EvaluatorWord),
        }

    def progress(self, role: str) -> None:
        words, kind = self.words[role]
        words.bump(kind.PROGRESS)

    def set_waiting(self, role: str, value: int) -> None:
        words, kind = self.words[role]
        words.set(kind.IS_WAITING, value)

    def seconds_until_hung(self, role: str, at_most: int = 2000) -> tuple[int, float] | None:
        """The second of the check that finds it hung, and the limit that it names."""
        for second in range(at_most):
            limit = self.watchdog.hung_for(role, 0, STEP_S)
            if limit is not None:
                return second, float(limit.removeprefix("no progress for ").split()[0])
            self.clock.now_s += 1.0
            self.watchdog.discount_pause()
        return None

    def seconds_until_deadlocked(self, at_most: int = 100) -> int | None:
        for second in range(at_most):
            if self.watchdog.is_deadlocked(PAIR, STEP_S):
                return second
            self.clock.now_s += 1.0
            self.watchdog.discount_pause()
        return None


@pytest.fixture(autouse=True)
def _idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offpolicy.processes.watchdog.load_per_core", lambda: 0.5)


@pytest.mark.parametrize(("role", "limit_s"), [("collector", 18), ("learner", 600), ("evaluator", 120)])
def test_busy_child_without_progress_is_hung_after_the_limit_of_its_role(role: str, limit_s: int) -> None:
    bench = Bench()
    bench.progress(role)
    assert bench.seconds_until_hung(role) == (limit_s + 1, limit_s)


@pytest.mark.parametrize(("role", "limit_s"), [("collector", 1120), ("learner", 1120), ("evaluator", 120)])
def test_a_start_that_reads_a_large_replay_has_time_for_it(role: str, limit_s: int) -> None:
    bench = Bench(replay_s=1000.0)
    assert bench.seconds_until_hung(role) == (limit_s + 1, limit_s)
    text = bench.watchdog.hung_for(role, 0, STEP_S) or ""
    assert text.endswith("runner.start_timeout_s and the time to read the replay") == (role != "evaluator")


def test_waiting_child_is_never_hung_and_its_limit_starts_when_it_resumes() -> None:
    bench = Bench()
    bench.progress("collector")
    bench.set_waiting("collector", 1)
    assert bench.seconds_until_hung("collector", at_most=100) is None
    bench.set_waiting("collector", 0)
    assert bench.seconds_until_hung("collector") == (18, 18.0)  # the last check while it waited was a second before


def test_pause_of_everything_counts_against_no_child() -> None:
    bench = Bench()
    bench.progress("collector")
    assert bench.seconds_until_hung("collector", at_most=15) is None
    bench.clock.now_s += 1000.0
    assert bench.watchdog.discount_pause() == 1000.0
    assert bench.watchdog.discount_pause() == 0.0
    assert bench.seconds_until_hung("collector") == (4, 18.0)


def test_children_that_wait_for_each_other_are_deadlocked() -> None:
    bench = Bench()
    for role, _ in PAIR:
        bench.set_waiting(role, 1)
    assert bench.seconds_until_deadlocked() == 11


@pytest.mark.parametrize("busy", ["learner", "collector"])
def test_one_busy_child_is_no_deadlock(busy: str) -> None:
    bench = Bench()
    for role, _ in PAIR:
        bench.set_waiting(role, int(role != busy))
    assert bench.seconds_until_deadlocked() is None


def test_counts_that_move_and_pauses_are_no_deadlock() -> None:
    bench = Bench()
    for role, _ in PAIR:
        bench.set_waiting(role, 1)
    for _ in range(5):
        bench.control.collectors[0].bump(CollectorWord.ENV_STEPS)
        assert bench.seconds_until_deadlocked(at_most=8) is None
        bench.control.leader.bump(RankWord.UPDATES)
        assert bench.seconds_until_deadlocked(at_most=8) is None
    bench.clock.now_s += 50.0
    assert bench.watchdog.discount_pause() == 50.0
    assert bench.seconds_until_deadlocked(at_most=2) is None


def frozen_from(bench: Bench, at_most: int = 30) -> int | None:
    """The second of the check that finds the collector frozen; it waits, and it is asked for a snapshot."""
    for second in range(at_most):
        if bench.watchdog.is_frozen("collector", 0, pid=1):
            return second
        bench.clock.now_s += 1.0
        bench.watchdog.discount_pause()
    return None


def asked_and_waiting() -> Bench:
    bench = Bench()
    bench.set_waiting("collector", 1)
    bench.control.leader.set(RankWord.SNAPSHOT_REQUEST, 1)
    return bench


def test_a_process_that_sleeps_on_though_it_is_asked_for_something_is_frozen_after_ten_seconds() -> None:
    assert frozen_from(asked_and_waiting()) == 11


def test_a_process_that_reacts_in_between_has_its_ten_seconds_anew() -> None:
    reacting = asked_and_waiting()
    assert frozen_from(reacting, at_most=8) is None
    reacting.set_waiting("collector", 0)
    assert frozen_from(reacting, at_most=1) is None
    reacting.set_waiting("collector", 1)
    assert frozen_from(reacting) == 10


def test_a_collector_that_writes_its_part_of_a_checkpoint_has_the_time_of_a_disk() -> None:
    bench = Bench()
    bench.progress("collector")
    assert bench.seconds_until_hung("collector", at_most=15) is None
    bench.control.collectors[0].set(CollectorWord.IS_SAVING, 1)
    bench.progress("collector")
    assert bench.seconds_until_hung("collector") == (601, 600.0)
    assert bench.watchdog.hung_for("collector", 0, STEP_S) == (
        "no progress for 600 s, longer than its part of a checkpoint may take"
    )
