from __future__ import annotations

import pytest

from offpolicy.logger.text import duration, milliseconds, rate, significant


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "-"), (0.9, "0:00"), (118.9, "1:58"), (3600.0, "1:00:00"), (90061.0, "1d 1:01:01")],
)
def test_durations_read_like_a_clock(seconds: float | None, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(("value", "expected"), [(None, "-"), (151.23, "151.2"), (4100.4, "4100"), (155.0, "155.0")])
def test_rates_have_one_decimal_below_a_thousand(value: float | None, expected: str) -> None:
    assert rate(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "-"), (0.0, "0.00"), (-812.34, "-812"), (3.1, "3.10"), (1.23e7, "1.23e7"), (-4.5e-9, "-4.50e-9")],
)
def test_losses_have_three_digits_and_fit_eight_characters(value: float | None, expected: str) -> None:
    assert significant(value) == expected


@pytest.mark.parametrize(("value", "expected"), [(0.1, "0.10"), (999.994, "999.99"), (12345.6, "12,346")])
def test_milliseconds_fit_their_column(value: float, expected: str) -> None:
    assert milliseconds(value) == expected
