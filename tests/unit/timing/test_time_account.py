from __future__ import annotations

import inspect

import pytest

from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase
from offpolicy.timing.time_account import NULL_SPAN, NullLedger, TimeAccount

MEMBERS = [name for name in vars(TimeAccount) if not name.startswith("_")]


@pytest.mark.parametrize("kind", [Ledger, NullLedger])
@pytest.mark.parametrize("name", MEMBERS)
def test_both_accounts_have_every_member_with_its_arguments(kind: type, name: str) -> None:
    promised = inspect.getattr_static(TimeAccount, name)
    found = inspect.getattr_static(kind, name)
    if callable(promised):
        assert list(inspect.signature(found).parameters) == list(inspect.signature(promised).parameters)


def test_without_timing_every_phase_is_the_same_span_that_does_nothing() -> None:
    account = NullLedger()
    assert {account.phase(phase) for phase in LearnerPhase} == {NULL_SPAN}
    with account.phase(LearnerPhase.TRAIN), account.phase(LearnerPhase.TRAIN):  # also inside itself
        pass
    assert (account.account(), account.take_outlier(), account.total_ns([LearnerPhase.TRAIN])) == (None, None, 0)
    assert (account.insert(LearnerPhase.H2D, 5), account.switched_ns) == ((0, 0), 0)
