"""How long the tests of processes wait: a stop of the whole machine is nobody's fault."""

from __future__ import annotations

import time

import pytest

from tests.processes.conftest import Patience


def test_seconds_in_which_nothing_ran_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    patience = Patience(10.0)
    steps = [(4.0, False), (90.0, False), (4.0, False), (3.0, True)]
    for step_s, is_over in steps:
        now[0] += step_s
        assert patience.is_over() is is_over
    patience.renew()
    assert not patience.is_over()
