"""What bounds real runs whose trouble is known: other programs on the core, slow resets, slow updates."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.test_delays import SLOW_STEP, Run, train

pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.alone]
BUSY = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
while not (os.path.exists(sys.argv[2]) and os.path.getsize(sys.argv[2])):
    time.sleep(0.02)
while True: pass
"""


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """This process, and what it starts, may use one core only."""
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    os.sched_setaffinity(0, {core})
    yield core
    os.sched_setaffinity(0, allowed)


@pytest.fixture
def neighbours(one_core: int, tmp_path: Path) -> Iterator[None]:
    """Two programs that never rest, on that core, from the first record of the run on."""
    records = str(tmp_path / "run" / "metrics.jsonl")
    programs = [subprocess.Popen([sys.executable, "-c", BUSY, str(one_core), records]) for _ in range(2)]
    yield
    for program in programs:
        program.kill()
        program.wait()


def bottleneck(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = run.summary["bottleneck"]
    return found


@pytest.mark.usefixtures("neighbours")
def test_a_learner_whose_core_others_take_is_in_contention(tmp_path: Path) -> None:
    words = ("env.id=offpolicy.envs.toy:PointMass-v0", "algo.hidden_dims=[256,256]", "algo.batch_size=256")
    run = train(tmp_path, (*words, "total_timesteps=300", "log.every_s=0.5"), {})
    found = bottleneck(run)
    assert found["verdict"] == "contention", found
    assert found["reason"].startswith("the learner could have run and was not given a core for ")
    assert run.median("cpu/learner_descheduled_pct") > 30.0


@pytest.mark.promise("verdict-right")
def test_resets_are_to_blame_where_they_take_the_time(tmp_path: Path) -> None:
    words = (SLOW_STEP, "env.kwargs.step_ms=1", "env.kwargs.reset_ms=600", "total_timesteps=500")
    run = train(tmp_path, words, {})
    found = bottleneck(run)
    assert (found["verdict"], found["phase"]) == ("collector", "env_step"), found
    assert "because environments are reset" in found["reason"]
    assert found["advice"][0].startswith("collect.mode=auto: ")  # the resets beside the updates
    assert found["advice"][1].startswith("env.num_envs=4 env.vectorization=async: ")  # the others step meanwhile
