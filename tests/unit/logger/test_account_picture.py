"""The picture of the account over env steps: when it is drawn, and of which records."""

from __future__ import annotations

from threading import Event

import numpy as np
import pytest

from offpolicy.logger import account_picture
from offpolicy.logger.account_picture import EVERY_S, MOST_RECORDS, AccountHistory, Picture
from offpolicy.logger.metrics import share_key
from offpolicy.logger.record import Record
from offpolicy.timing.phases import LearnerPhase
from offpolicy.types import Float64

PNG = b"\x89PNG\r\n\x1a\n"


def timed(env_steps: int, train: float = 80.0) -> Record:
    shares = dict.fromkeys((share_key("learner", phase) for phase in LearnerPhase), 0.0)
    return {
        "env_steps": env_steps,
        **shares,
        "share/learner_train_pct": train,
        "share/learner_other_pct": 100.0 - train,
    }


def history(*records: Record) -> AccountHistory:
    made = AccountHistory()
    for record in records:
        made.add(record)
    return made


def picture(made: AccountHistory, wall_s: float) -> Picture | None:
    made.draw_if_due(wall_s)
    return made.take(timeout_s=60.0)


def test_a_picture_is_drawn_when_it_is_due() -> None:
    pytest.importorskip("matplotlib")
    made = history(timed(100), timed(200, 60.0))
    assert picture(made, EVERY_S - 1.0) is None
    first = picture(made, EVERY_S)
    assert first is not None
    assert (first.env_steps, first.png[:8]) == (200, PNG)
    assert picture(made, 2 * EVERY_S - 1.0) is None
    assert picture(made, 2 * EVERY_S) is not None


def test_nobody_waits_while_a_picture_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, drawn = Event(), list[Float64]()

    def draw(rows: Float64) -> bytes:
        drawn.append(rows)
        assert may_end.wait(60.0)
        return PNG

    monkeypatch.setattr(account_picture, "account_png", draw)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    made = history(timed(100), timed(200))
    made.draw_if_due(EVERY_S)
    made.draw_if_due(3 * EVERY_S)  # one at a time
    assert made.take() is None
    may_end.set()
    assert made.take(timeout_s=60.0) == Picture(200, PNG)
    assert made.take() is None
    assert len(drawn) == 1


def test_the_error_of_the_drawing_comes_with_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_picture, "account_png", lambda rows: 1 / 0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with pytest.raises(ZeroDivisionError):
        picture(history(timed(100), timed(200)), EVERY_S)


def test_the_end_waits_for_the_thread_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = Event()
    monkeypatch.setattr(account_picture, "account_png", lambda rows: PNG if may_end.wait(60.0) else b"")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    made = history(timed(100), timed(200))
    made.close(60.0)  # nothing was ever drawn
    made.draw_if_due(EVERY_S)
    made.close(0.01)
    assert made._thread is not None
    assert made._thread.is_alive()
    may_end.set()
    made.close(60.0)
    assert not made._thread.is_alive()


def test_there_is_no_picture_of_one_record_or_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    assert picture(history(timed(100), {"env_steps": 200}), EVERY_S) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert picture(history(timed(100), timed(200)), EVERY_S) is None


def test_of_a_long_run_evenly_spaced_records_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Float64] = []

    def draw(rows: Float64) -> bytes:
        drawn.append(rows)
        return PNG

    monkeypatch.setattr(account_picture, "account_png", draw)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    picture(history(*map(timed, range(5 * MOST_RECORDS))), EVERY_S)
    steps = drawn[0][:, 0]
    assert len(steps) <= MOST_RECORDS
    assert set(np.diff(steps)[MOST_RECORDS // 2 :]) <= {8.0}
    assert steps[-1] > 4.9 * MOST_RECORDS
