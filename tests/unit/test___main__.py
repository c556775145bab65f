"""`python -m offpolicy` is the command `offpolicy`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "offpolicy", "train", "sead=1"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert "did you mean seed?" in result.stderr
