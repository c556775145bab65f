"""Three learner ranks to the end, killed and resumed; and eight runs at once."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import Traces
from tests.processes.conftest import LiveRun, StartRun
from tests.processes.test_bitwise import content

pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.timeout(600)]
PATIENCE_S = 200.0  # for seven processes that start at once, or eight runs, on a busy machine
THREE = (
    *("runner=multi_gpu", "runner.world_size=3", "collect.num_collectors=3", "collect.mode=alternate", "device=cpu"),
    *("algo.batch_size=24", "total_timesteps=900", "checkpoint.every=90", "algo.normalize_obs=true"),
)


def finish(run: LiveRun) -> str:
    """The output of a run that succeeded."""
    code, out, err = run.finish(PATIENCE_S)
    assert (code, err) == (0, "")
    return out


@pytest.mark.parametrize("victim", ["supervisor", "learner-2"])
def test_three_ranks_killed_and_resumed_are_bitwise_the_uninterrupted_ones(
    start_run: StartRun, traces: Traces, tmp_path: Path, victim: str
) -> None:
    finish(start_run(*THREE, "run_dir=whole"))
    broken = start_run(*THREE, "run_dir=broken", "runner.max_restarts=0")
    broken.wait_until(lambda: len(broken.checkpoints()) >= 2, PATIENCE_S)
    os.kill(broken.process.pid if victim == "supervisor" else broken.pid_of("learner", 2), signal.SIGKILL)
    assert broken.finish(PATIENCE_S)[0] == (-signal.SIGKILL if victim == "supervisor" else 1)
    traces.assert_none()
    assert broken.checkpoints()[-1] < "step-000000000900", "killed too late to prove anything"
    assert "not bitwise" not in finish(start_run(command=("resume", "broken")))
    whole, again = (tmp_path / name / "checkpoints" / "step-000000000900" for name in ("whole", "broken"))
    assert json.loads((whole / "state.json").read_text())["num_ranks"] == 3
    expected, found = contents_of_three(whole), contents_of_three(again)
    assert [name for name in expected | found if found.get(name) != expected.get(name)] == []
    traces.assert_none()


def contents_of_three(checkpoint: Path) -> dict[str, bytes]:
    files = content(checkpoint)
    assert {f"{what}-{index}.json" for what in ("rank", "collector") for index in range(3)} <= files.keys()
    return files


def test_another_number_of_ranks_is_refused_where_it_cannot_be_and_reported_where_it_can(start_run: StartRun) -> None:
    run = start_run(*THREE, "total_timesteps=300")
    finish(run)
    config, checkpoints = (run.directory / "config.yaml").read_text(), run.checkpoints()
    resume = ("resume", "run")
    code, _, err = start_run("runner.world_size=5", "total_timesteps=400", command=resume).finish(PATIENCE_S)
    assert (code, "algo.batch_size: got 24, allowed a multiple of runner.world_size=5" in err) == (2, True)
    code, _, err = start_run("collect.num_collectors=2", "total_timesteps=400", command=resume).finish(PATIENCE_S)
    assert (code, "collect.num_collectors: cannot change when a run is resumed" in err) == (2, True)
    assert ((run.directory / "config.yaml").read_text(), run.checkpoints()) == (config, checkpoints)
    for before, now, total in ((3, 2, 390), (2, 3, 480)):
        words = (f"runner.world_size={now}", f"total_timesteps={total}")
        out = finish(start_run(*words, command=resume))
        assert f"not bitwise: {before} learner ranks before, {now} now" in out
    assert run.summary()["env_steps"] == 480
