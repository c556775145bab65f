"""Real runs report how their updates are made."""

from __future__ import annotations

import pytest

from tests.processes.conftest import StartRun

pytestmark = [pytest.mark.mp, pytest.mark.slow]
NO_GRAPH = "algo.compile=graph: off, graph is impossible: kernels are captured on CUDA only, and the device is cpu"


def test_a_run_that_finds_no_cuda_says_why_it_captures_nothing_and_learns(
    start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run = start_run("algo.compile=graph", "algo.precision=bf16", "algo.hidden_dims=[8,8]", "device=auto")
    code, out, err = run.finish()
    assert (code, err) == (0, "")
    assert NO_GRAPH in out.splitlines()
    assert run.summary()["compile"] == {"mode": "off", "reason": NO_GRAPH}
    assert run.summary()["updates"] > 0


def test_a_graph_that_is_asked_for_on_a_cpu_is_refused_before_a_process_starts(start_run: StartRun) -> None:
    run = start_run("algo.compile=graph", "device=cpu")
    code, _, err = run.finish()
    assert code == 2
    assert "algo.compile: got graph, allowed off, auto or reduce-overhead with device=cpu" in err
    assert not run.directory.exists()


def test_a_resumed_run_keeps_the_mode_of_its_checkpoint(start_run: StartRun) -> None:
    first = start_run("algo.compile=auto", "total_timesteps=300", "device=cpu")
    assert first.finish()[0] == 0
    again = start_run("total_timesteps=400", command=("resume", "run"))
    code, out, err = again.finish()
    assert (code, err) == (0, "")
    assert any(line.startswith("algo.compile=auto: off, a CPU has no") for line in out.splitlines())
    refused = start_run("algo.precision=bf16", "total_timesteps=500", command=("resume", "run"))
    code, _, err = refused.finish()
    assert code == 2
    assert "algo.precision" in err
