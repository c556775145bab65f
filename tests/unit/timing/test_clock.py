"""What a clock says where the kernel does not help."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from offpolicy.timing.clock import queued_ns


def missing(path: Path) -> NoReturn:
    raise FileNotFoundError(path)


def test_without_proc_no_thread_is_known_to_have_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "iterdir", missing)
    assert queued_ns() == 0
