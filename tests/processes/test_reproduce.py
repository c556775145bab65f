"""A run in alternate mode, reproduced by the command line, is equal bit for bit, and a changed seed is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.processes.conftest import TINY

pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.timeout(300)]
SMALL = (*TINY, "total_timesteps=400", "eval.episodes=1", "device=cpu", "threads.learner=1", "collect.mode=alternate")


def test_a_run_is_reproduced_bit_for_bit_and_another_seed_is_not(run_cli: Any, tmp_path: Path) -> None:
    words = list({word.split("=")[0]: word for word in SMALL}.values())
    first = run_cli(["train", *words, "run_dir=first"], timeout=100)
    assert first.returncode == 0, first.stderr
    again = run_cli(["reproduce", "first", "run_dir=again"], timeout=100)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "result      reproduced, bit for bit" in again.stdout
    other = run_cli(["reproduce", "first", "run_dir=other", "seed=9"], timeout=100)
    assert other.returncode == 0, other.stdout + other.stderr
    assert "not bitwise seed: was 1, is 9" in other.stdout
    assert "differs     parameters:" in other.stdout
    assert "differs     training episodes:" in other.stdout
