"""The picture of the account over env steps: when it is drawn, and of which records."""

from __future__ import annotations

import numpy as np
import pytest

from offpolicy.logger import account_picture
from offpolicy.logger.account_picture import EVERY_S, MOST_RECORDS, AccountHistory
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


def test_a_picture_is_drawn_when_it_is_due() -> None:
    pytest.importorskip("matplotlib")
    made = history(timed(100), timed(200, 60.0))
    assert made.due_picture(EVERY_S - 1.0) is None
    picture = made.due_picture(EVERY_S)
    assert picture is not None
    assert picture.startswith(PNG)
    assert made.due_picture(2 * EVERY_S - 1.0) is None
    assert made.due_picture(2 * EVERY_S) is not None


def test_there_is_no_picture_of_one_record_or_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    assert history(timed(100), {"env_steps": 200}).due_picture(EVERY_S) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert history(timed(100), timed(200)).due_picture(EVERY_S) is None


def test_of_a_long_run_evenly_spaced_records_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Float64] = []

    def draw(rows: Float64) -> bytes:
        drawn.append(rows)
        return PNG

    monkeypatch.setattr(account_picture, "account_png", draw)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    history(*map(timed, range(5 * MOST_RECORDS))).due_picture(EVERY_S)
    steps = drawn[0][:, 0]
    assert len(steps) <= MOST_RECORDS
    assert set(np.diff(steps)[MOST_RECORDS // 2 :]) <= {8.0}
    assert steps[-1] > 4.9 * MOST_RECORDS
