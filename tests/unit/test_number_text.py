"""Numbers of any size can be read, and no zero is negative."""

from __future__ import annotations

import pytest

from offpolicy.number_text import counted, return_text, three_digits


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.01234, "0.0123"), (-0.04, "-0.0400"), (9.994, "9.99"), (9.996, "10.0"), (-151.26, "-151.3"),
        (999_999.9, "999999.9"), (-1.23e13, "-1.23e13"), (-0.0, "0.0"), (float("nan"), "nan"),
    ],
)  # fmt: skip
def test_small_and_huge_returns_can_be_read(value: float, expected: str) -> None:
    """Returns of 0.010 to 0.013 were all 0.0, one of -0.01 was -0.0, and one of -1.23e13 had 17 characters."""
    assert return_text(value) == expected


def test_a_large_return_has_the_separators_that_are_asked_for() -> None:
    assert (return_text(-1244.53, ","), return_text(-1244.53)) == ("-1,244.5", "-1244.5")


def test_a_zero_is_never_negative() -> None:
    assert three_digits(-0.0) == "0.00"


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 threads"), (1, "1 thread"), (2, "2 threads"), (2000, "2,000 threads")]
)
def test_a_number_of_things_is_said_in_english(number: int, text: str) -> None:
    assert counted(number, "thread") == text
