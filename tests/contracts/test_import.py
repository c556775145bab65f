"""`import offpolicy` is light: none of what it offers is loaded before it is used, and all that it names is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import offpolicy

REPOSITORY = Path(__file__).resolve().parents[2]
LOADED = "import sys; before = set(sys.modules); import offpolicy; print(*sorted(set(sys.modules) - before))"
TIMED = "import time; t = time.perf_counter(); import offpolicy; print(time.perf_counter() - t)"
LIGHT = ("algorithms", "configure", "ConfigError", "TrainedRun", "train", "compare")
LEAST_S = 0.15


def printed(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60).stdout


def test_import_offpolicy_loads_nothing_but_itself_and_typing() -> None:
    loaded = printed(LOADED).split()
    assert "offpolicy" in loaded
    assert [name for name in loaded if name.startswith(("offpolicy.", "torch", "numpy", "hydra", "rich"))] == []


def test_what_only_describes_or_starts_runs_needs_no_torch() -> None:
    names = "; ".join(f"offpolicy.{name}" for name in LIGHT)
    assert printed(f"import sys, offpolicy, runners.train; {names}; print('torch' in sys.modules)").strip() == "False"


@pytest.mark.alone
def test_import_offpolicy_takes_less_than_the_time_promised() -> None:
    assert min(float(printed(TIMED)) for _ in range(5)) < LEAST_S


def test_every_name_is_there_and_another_is_no_attribute() -> None:
    for name in offpolicy.__all__:
        assert getattr(offpolicy, name) is not None
        assert name in dir(offpolicy)
    with pytest.raises(AttributeError, match="module 'offpolicy' has no attribute 'fly'"):
        _ = offpolicy.fly  # type: ignore[attr-defined]
