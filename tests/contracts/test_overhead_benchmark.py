"""The benchmark of the ledger's overhead runs the loop of today: type checks do not read benchmarks."""

from __future__ import annotations

import pytest

from benchmarks.parts import overhead


@pytest.mark.parametrize("is_timed", [False, True])
def test_the_loop_runs_with_the_parts_of_the_benchmark(is_timed: bool) -> None:
    assert overhead._iteration_ns(overhead._Nothing(), is_timed=is_timed, iterations=3) > 0
