"""The check of the clock sees its cost, its smallest step, and steps backwards."""

from __future__ import annotations

from offpolicy.timing.clock_check import check_clock


class Scripted:
    """A clock that reads the given instants."""

    def __init__(self, *instants: int) -> None:
        self._instants = list(instants)

    def now_ns(self) -> int:
        return self._instants.pop(0)


def test_the_smallest_step_and_the_cost_of_a_reading_are_seen() -> None:
    found = check_clock(Scripted(100, 100, 140, 260), readings=4)
    assert (found.step_ns, found.backward_steps) == (40, 0)
    assert found.reading_ns == 160 / 3


def test_a_pause_in_the_series_does_not_make_the_clock_slow() -> None:
    """Another program had the core for 70 ms."""
    instants = [50 * number + (70_000_000 if number > 800 else 0) for number in range(2_000)]
    assert check_clock(Scripted(*instants), readings=2_000).reading_ns == 50.0


def test_a_clock_of_coarse_steps_is_as_slow_as_all_its_readings() -> None:
    instants = [4_000_000 * (number // 4_000) for number in range(8_001)]
    assert check_clock(Scripted(*instants), readings=8_001).reading_ns == 1_000.0


def test_a_clock_that_steps_back_is_caught() -> None:
    assert check_clock(Scripted(100, 90, 200, 150), readings=4).backward_steps == 2
