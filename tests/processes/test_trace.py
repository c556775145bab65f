"""Traces of real runs of every runner, of a run that was killed, and what measuring them changes: nothing."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunCli
from tests.processes.conftest import TINY, StartRun
from tests.processes.test_hora import TEACH
from tests.trace_format import problems_of

pytestmark = pytest.mark.mp
TRACED = "timing.trace=true"
SLOW = pytest.mark.slow
SAC, PACKED = ("train", *TINY), {"learner 0", "collector 0", "packer 0", "supervisor"}
RUNS = {
    "single_gpu": (SAC, (), {"learner 0", "collector 0", "supervisor"}),
    "double_buffer": (SAC, ("runner=double_buffer",), PACKED),
    "multi_gpu": (
        SAC,
        ("runner=multi_gpu", "runner.world_size=2", "collect.num_collectors=2"),
        {"learner 0", "learner 1", "collector 0", "collector 1", "supervisor"},
    ),
    "hora": ((*TEACH, "run_dir=run"), (), {"learner 0", "collector 0", "supervisor"}),
}


def threads_of(content: dict[str, Any]) -> set[str]:
    """The threads with a name, without those that only torch.profiler knows."""
    names = [event for event in content["traceEvents"] if event["ph"] == "M" and event["name"] == "thread_name"]
    return {event["args"]["name"] for event in names if event["tid"] < 10}


@pytest.mark.parametrize(
    "name", ["single_gpu", *(pytest.param(name, marks=SLOW) for name in RUNS if name != "single_gpu")]
)
def test_a_traced_run_writes_a_valid_trace_of_every_thread(
    start_run: StartRun, run_cli: RunCli, tmp_path: Path, name: str
) -> None:
    command, overrides, threads = RUNS[name]
    code, _, err = start_run(TRACED, *overrides, command=command).finish(100.0)
    assert (code, err) == (0, "")
    content = json.loads((tmp_path / "run/trace.json").read_text())
    assert problems_of(content) == []
    assert threads_of(content) == threads
    assert {event["ph"] for event in content["traceEvents"]} == {"M", "X", "C", "s", "f"}
    done = run_cli(["trace", "run", "--svg", "run.svg", "--iterations", "1"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "overlap of learner 0 and the collectors" in done.stdout
    assert "written: run.svg" in done.stdout


@SLOW
def test_a_killed_run_has_a_trace_and_the_resumed_run_another(
    start_run: StartRun, run_cli: RunCli, tmp_path: Path
) -> None:
    run = start_run(TRACED, "total_timesteps=20000", "checkpoint.every=200")
    run.wait_until(lambda: bool(run.directory.exists() and run.checkpoints()), 40.0)
    alive = run_cli(["trace", "run"])  # it only reads: the run continues
    assert (alive.returncode, run.process.poll()) == (0, None)
    (tmp_path / "run/trace.json").unlink()
    run.signal(signal.SIGKILL)
    run.process.communicate(timeout=20.0)
    done = run_cli(["trace", "run"])
    assert (done.returncode, done.stderr) == (0, "")
    first = json.loads((tmp_path / "run/trace.json").read_text())
    assert problems_of(first) == []
    reached = max(record["env_steps"] for record in run.records())
    resumed = start_run(f"total_timesteps={reached + 300}", command=("resume", "run"))
    assert resumed.finish()[0] == 0
    assert sorted(path.name for path in (tmp_path / "run/trace").iterdir()) == ["0", "1"]
    assert json.loads((tmp_path / "run/trace.json").read_text())["otherData"] != first["otherData"]
    again = run_cli(["trace", "run", "--start", "0"])
    assert (again.returncode, json.loads((tmp_path / "run/trace.json").read_text())) == (0, first)
