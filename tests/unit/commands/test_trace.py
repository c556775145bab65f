"""`offpolicy trace`: what is refused before a trace is read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from offpolicy.commands.trace import Request, trace
from offpolicy.errors import ConfigError


def test_a_run_that_was_not_traced_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"was not traced; train with timing\.trace=true"):
        trace(Request(tmp_path))


def test_a_start_that_was_not_traced_is_refused_with_those_that_were(tmp_path: Path) -> None:
    for name in ("0", "2", "notes"):
        (tmp_path / "trace" / name).mkdir(parents=True)
    with pytest.raises(ConfigError, match="--start: got 1, allowed 0, 2"):
        trace(Request(tmp_path, start=1))


def test_a_picture_without_matplotlib_is_refused_first_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "offpolicy.analysis.plots", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'offpolicy\[plot\]'"):
        trace(Request(tmp_path / "missing", svg=tmp_path / "x.svg"))
