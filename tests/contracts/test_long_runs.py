"""Runs of days and counters past 2^53, where float64 no longer counts by one; and a wall clock that jumps."""

from __future__ import annotations

import ast
from fractions import Fraction
from pathlib import Path

import numpy as np

from offpolicy.processes.control_page import CollectorWord, ControlPage, RankWord
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.sampler import Sampler
from offpolicy.timing.clock import Every, Stopwatch
from tests.fakes import FakeClock
from tests.replay_scene import NUMBERED, numbered_ring, numbered_slots, numbers_of

REPOSITORY = Path(__file__).resolve().parents[2]
FAR = 2**53 + 1  # the first integer that float64 does not have
DAY_NS = 24 * 3600 * 10**9
# The only readings of a clock that may jump: dates of records and names of directories, never a duration.
WALL_CLOCK = {"wall_clock_stamp", "unix_s", "unix_minus_monotonic_ns"}


def test_words_count_by_one_past_2_to_the_53() -> None:
    control = ControlPage(memoryview(bytearray(ControlPage.nbytes(1, 1))), 1, 1)
    control.collectors[0][CollectorWord.ENV_STEPS] = FAR
    control.leader[RankWord.UPDATES] = FAR
    control.leader[RankWord.UPDATES] += 1
    assert control.leader[RankWord.UPDATES] == FAR + 1
    assert control.env_steps == FAR


def test_updates_that_are_due_are_exact_past_2_to_the_53() -> None:
    limiter = RateLimiter(Fraction(1), start=0, start_updates=0, lead=0, credit=0, max_updates=64, total=2**60)
    assert [limiter.due(FAR + extra, FAR) for extra in range(3)] == [0, 1, 2]
    assert limiter.needed(FAR) == FAR + 1


def test_a_ring_reads_and_samples_the_rows_it_was_asked_for_past_2_to_the_53() -> None:
    ring, first = numbered_ring(100), FAR - 50
    slots = numbered_slots(0, 132)
    ring.restore_slots(first, [slots[:80]], slots[80:81])
    ring.begin()
    for number in range(80, 131):
        ring.write(slots[max(number - 1, 80) : number, 2:], slots[number : number + 1, :2])
    assert (ring.oldest, ring.committed) == (first + 30, first + 130)
    assert ring.read_range(FAR, FAR + 3)[:, 0].tolist() == [50.0, 51.0, 52.0]
    out = np.empty((2000, NUMBERED.width), np.float32)
    draw = Sampler([ring], np.random.default_rng(0), 0).fill(out)
    assert (numbers_of(out) == draw.position - first).all()
    assert set(out[:, 0].astype(int)) == set(range(30, 130))


def test_in_a_day_records_are_due_every_two_seconds_also_after_a_sleep_of_an_hour() -> None:
    clock = FakeClock(0)
    due = Every(Stopwatch(clock).elapsed_s, 2.0)
    count = 0
    for _ in range(DAY_NS // 10**9):
        clock.advance(10**9)
        count += due.is_due()
    assert count == 43_200
    clock.advance(3600 * 10**9)
    assert [due.is_due() for _ in range(3)] == [True, False, False]


def test_no_duration_and_no_deadline_is_measured_by_a_clock_that_jumps() -> None:
    readers = set()
    for path in sorted((REPOSITORY / "offpolicy").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and reads_the_wall_clock(node):
                readers.add(node.name)
    assert readers == WALL_CLOCK


def reads_the_wall_clock(node: ast.AST) -> bool:
    names = {"time.time", "time.time_ns", "time.strftime", "datetime.now", "datetime.datetime.now"}
    calls = (ast.unparse(found.func) for found in ast.walk(node) if isinstance(found, ast.Call))
    return any(name in names for name in calls)
