"""The module of the runners is found by name."""

from __future__ import annotations

from offpolicy.commands.runners import train_module
from runners import train


def test_a_checkout_has_the_runners_beside_the_package() -> None:
    assert train_module() is train
