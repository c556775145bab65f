"""Commands as they are typed: what they print, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from offpolicy.cli import main

Typed = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """`printed("list", run, ...)`: stdout of a command that succeeds."""

    def run(*words: str | Path) -> str:
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Typed:
    """`refused("eval", run, ..., code=2)`: stderr of a command that ends with this code."""

    def run(*words: str | Path, code: int = 2) -> str:
        assert main([str(word) for word in words]) == code
        return capsys.readouterr().err

    return run
