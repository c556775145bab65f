"""How long the tests of processes wait: a stop of the whole machine is nobody's fault."""

from __future__ import annotations

import time

import pytest

from tests.processes import conftest
from tests.processes.conftest import NUM_CORES, Patience


def test_seconds_in_which_nothing_ran_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(conftest, "num_running", lambda: 1)
    patience = Patience(10.0)
    steps = [(4.0, False), (90.0, False), (4.0, False), (3.0, True)]
    for step_s, is_over in steps:
        now[0] += step_s
        assert patience.is_over() is is_over
    patience.renew()
    assert not patience.is_over()


@pytest.mark.parametrize(("threads_per_core", "seconds"), [(0, 10.0), (1, 10.0), (2, 20.0), (100, 40.0)])
def test_of_a_machine_that_others_use_a_part_of_each_second_counts(
    monkeypatch: pytest.MonkeyPatch, threads_per_core: int, seconds: float
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(conftest, "num_running", lambda: threads_per_core * NUM_CORES)
    patience = Patience(10.0)
    while not patience.is_over():
        now[0] += 0.5
    assert now[0] == seconds + 0.5
