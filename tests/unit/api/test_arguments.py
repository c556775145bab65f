"""Numbers that a program hands over: Python's and NumPy's, and what is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offpolicy.api.arguments import finite_number, whole_number
from offpolicy.errors import ConfigError


def test_a_whole_number_may_be_one_of_numpy() -> None:
    found = whole_number("seed", np.int64(3), 0)
    assert (found, type(found)) == (3, int)
    assert whole_number("step", 0, 0) == 0


@pytest.mark.parametrize("given", [-1, 1.5, 2.0, "3", True, None, np.float32(1.5), [1]])
def test_what_is_no_whole_number_or_too_small_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^seed: got .*, allowed a whole number in \[0, inf\)$"):
        whole_number("seed", given, 0)


def test_a_finite_number_may_be_one_of_numpy() -> None:
    found = finite_number("reference", np.float32(-0.5))
    assert (found, type(found)) == (-0.5, float)
    assert finite_number("reference", -200) == -200.0


@pytest.mark.parametrize("given", [float("nan"), float("-inf"), np.inf, 10**400, "3", True, None])
def test_what_is_no_finite_number_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^reference: got .*, allowed a finite number$"):
        finite_number("reference", given)
