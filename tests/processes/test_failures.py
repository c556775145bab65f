"""Bad environments, bad directories, bad configurations: a clear error, the right exit code, nothing lost."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Traces
from tests.processes.conftest import FINISHED, TINY, LiveRun, SmallDisk

pytestmark = pytest.mark.mp
FAULTY = "env.id=tests.toys:Faulty-v0"
CLOSING = """
import threading, gymnasium
from tests.toys import Faulty

class Closing(Faulty):
    def close(self):
        if self._t >= self._at:
            threading.Event().wait()

gymnasium.register("Closing-v0", Closing)
"""


@pytest.mark.promise("last-words", "no-hang", "exit-codes", "summary")
@pytest.mark.parametrize(
    ("fail", "code", "words"),
    [
        ("step_raise", 1, ["Traceback", "step", "seed"]),
        pytest.param("unpicklable", 1, ["Traceback", "step"], marks=pytest.mark.slow),
        pytest.param("wrong_shape", 1, ["shape"], marks=pytest.mark.slow),
        ("hang", 70, ["no progress for", "env.step_timeout_s"]),
    ],
)
def test_a_failing_environment_ends_the_run_with_its_cause(
    start_run: Any, traces: Traces, fail: str, code: int, words: list[str]
) -> None:
    run: LiveRun = start_run(FAULTY, f"env.kwargs.fail={fail}", "env.kwargs.at=250", "env.step_timeout_s=3")
    got, _, err = run.finish()
    assert got == code, err
    assert [word for word in words if word not in err] == []
    assert err.strip().splitlines()[-1].startswith("offpolicy: collector 0 (pid ")
    assert "failed at env step" in err
    summary = run.summary()
    assert (summary["status"], summary["exit_code"]) == ("failed", code)
    assert summary["timing"]["learner"]["wall_s"] > 0
    traces.assert_none()


@pytest.mark.slow
def test_an_environment_that_hangs_when_it_is_closed_does_not_hide_how_it_failed(
    start_run: Any, traces: Traces, tmp_path: Path
) -> None:
    (tmp_path / "closing.py").write_text(CLOSING)
    run = start_run("env.id=closing:Closing-v0", "env.kwargs.at=250", "env.step_timeout_s=1", "eval.episodes=0")
    code, _, err = run.finish()
    assert code == 1, err
    assert [word for word in ("Traceback", "fails in step", "episode step 250") if word not in err] == []
    assert run.summary()["exit_code"] == 1
    assert len(run.checkpoints()) == 1
    traces.assert_none()


@pytest.mark.promise("restart")
def test_an_environment_that_crashes_again_and_again_is_a_crash_loop_with_its_causes(
    start_run: Any, traces: Traces
) -> None:
    run = start_run(FAULTY, "env.kwargs.fail=segv", "env.kwargs.at=20", "runner.max_restarts=1")
    code, out, err = run.finish(60.0)
    assert code == 70, err
    assert out.count("; restart 1 of at most 1") == 1
    last = err.strip().splitlines()[-1]
    assert "crash loop: 2 deaths within 10 minutes" in last
    assert last.count("killed by SIGSEGV") == 2
    assert (run.summary()["exit_code"], run.summary()["learner_restarts"]) == (70, 1)
    traces.assert_none()


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("algo.n_step=3", "env.num_envs=2", "env.vectorization=async"), marks=pytest.mark.slow),
        pytest.param(("collect.mode=overlap", "env.num_envs=2"), marks=pytest.mark.slow),
    ],
)
def test_an_environment_that_raises_is_made_again_only_where_that_is_wanted(
    start_run: Any, traces: Traces, options: tuple[str, ...]
) -> None:
    """Where it is not wanted, see above."""
    faulty = (FAULTY, "env.kwargs.fail=step_raise", "env.kwargs.at=250", "eval.episodes=0")
    run = start_run(*faulty, *options, "env.on_error=restart", "total_timesteps=1200")
    code, out, err = run.finish(60.0)
    assert code == 0, err
    times = out.count("of at most 4, by new environments")
    assert 1 <= times <= 4
    assert (run.summary()["restarts"], run.summary()["learner_restarts"]) == (times, 0)
    assert run.summary()["env_steps"] >= 1200
    traces.assert_none()


DOWN = """
import pathlib, gymnasium
from tests.toys import Faulty

class Down(Faulty):
    def reset(self, **options):
        if pathlib.Path("down").exists():
            pathlib.Path("down").rename("was_down")
            raise RuntimeError("is still down")
        return super().reset(**options)

    def step(self, action):
        if self._t == 250 and not pathlib.Path("was_down").exists():
            pathlib.Path("down").touch()
            raise RuntimeError("goes down")
        return super().step(action)

gymnasium.register("Down-v0", Down)
"""


def test_a_simulator_that_is_still_down_when_it_is_made_again_gets_another_try(start_run: Any, tmp_path: Path) -> None:
    (tmp_path / "down.py").write_text(DOWN)
    run = start_run("env.id=down:Down-v0", "env.kwargs.at=0", "eval.episodes=0", "env.on_error=restart")
    code, out, err = run.finish(60.0)
    assert code == 0, err
    assert out.count("by new environments") == 2
    assert "is still down" in out
    assert run.summary()["restarts"] == 2


def test_an_environment_that_raises_too_often_is_a_crash_loop(start_run: Any) -> None:
    faulty = (FAULTY, "env.kwargs.fail=step_raise", "env.kwargs.at=30", "eval.episodes=0")
    run = start_run(*faulty, "env.on_error=restart", "runner.max_restarts=2")
    code, out, err = run.finish(60.0)
    assert code == 70, err
    assert out.count("by new environments") == 2
    assert "crash loop: 3 deaths within 10 minutes" in err
    assert len(run.checkpoints()) == 1


@pytest.mark.parametrize(
    "options",
    [
        ("env.num_envs=2",),
        pytest.param(("algo.n_step=3", "collect.num_collectors=2"), marks=pytest.mark.slow),
        pytest.param(("algo=appo", "runner=appo", "rollout.length=20", "env.num_envs=2"), marks=pytest.mark.slow),
    ],
)
def test_bad_rows_up_to_the_limit_are_dropped_and_counted(start_run: Any, traces: Traces, options: tuple[str]) -> None:
    words = TINY if "algo=appo" not in options else [word for word in TINY if "learning_s" not in word]
    words = [word for word in words if "algo=appo" not in options or "batch_size" not in word]
    faulty = (FAULTY, "env.kwargs.fail=nan_obs", "env.kwargs.at=110", "eval.episodes=0", *options)
    run = start_run(*faulty, "env.max_bad_rows=100", command=("train", *words))
    code, out, err = run.finish(60.0)
    assert (code, err) == (0, "")
    assert run.summary()["env_steps"] >= 600
    assert out.count("of env.max_bad_rows=100") >= 2
    traces.assert_none()


@pytest.mark.promise("nan-never-trained", "exit-codes")
def test_one_bad_row_more_than_the_limit_ends_the_run(start_run: Any) -> None:
    """The rows before the last one are saved."""
    run = start_run(FAULTY, "env.kwargs.fail=nan_obs", "env.kwargs.at=110", "env.max_bad_rows=1")
    code, _, err = run.finish()
    assert code == 65, err
    named = re.search(r"NaN or Inf in next_obs of environment 0 at env step (\d+), episode step \d+, seed \d+", err)
    assert named is not None, err
    [checkpoint] = run.checkpoints()
    state = json.loads((run.directory / "checkpoints" / checkpoint / "state.json").read_text())
    assert state["env_steps"] == int(named[1])


def test_a_machine_that_refuses_a_process_at_the_start_is_named(
    start_run: Any, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFPOLICY_FAULT", "spawn@role=supervisor,n=2:EAGAIN")
    run = start_run()
    code, _, err = run.finish()
    last = err.splitlines()[-1]
    assert code == 1
    assert re.fullmatch(r"offpolicy: supervisor 0 \(pid \d+\) failed at env step 0: .*", last)
    assert "collector 0 cannot be started: Resource temporarily unavailable" in last
    assert "Traceback" not in err
    assert run.summary()["status"] == "failed"
    traces.assert_none()


@pytest.mark.parametrize("fail", [pytest.param("init_raise", marks=pytest.mark.slow), "reset_raise"])
def test_an_environment_that_fails_before_training_leaves_no_directory(start_run: Any, fail: str) -> None:
    run = start_run(FAULTY, f"env.kwargs.fail={fail}")
    code, _, err = run.finish()
    assert code == 1
    assert "Traceback" in err
    assert not run.directory.exists()


@pytest.mark.promise("refusals", "exit-codes")
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("algo.gama=0.9 algo.batch_size=many", ["algo.gama", "algo.gamma", "algo.batch_size", "many"]),
        ("env.id=Pendlum-v1", ["env.id", "Pendlum-v1", "Pendulum"]),
        ("run_dir=/proc/nowhere/run", ["run_dir", "/proc/nowhere/run"]),
        ("device=cuda:7", ["device", "cuda:7"]),
        ("replay.capacity=100000000000 total_timesteps=90000000000", ["replay.capacity", "GiB"]),
    ],
)
def test_a_bad_value_is_refused_with_exit_2(start_run: Any, overrides: str, words: list[str]) -> None:
    run = start_run(*overrides.split())
    code, _, err = run.finish()
    assert code == 2, err
    assert [word for word in words if word not in err] == []
    assert not run.directory.exists()


def test_resuming_with_another_configuration_is_refused_with_every_difference(
    start_run: Any, finished_copy: Path
) -> None:
    lock = json.dumps({"pid": 2**30, "parent": 1, "host": socket.gethostname()})
    (finished_copy / ".lock").write_text(lock)  # it was killed, which the refusal must not hide
    before = (finished_copy / "config.yaml").read_text()
    changes = ("algo.hidden_dims=[32,32]", "algo.utd=2", "log.every_s=1", "seed=7")
    code, _, err = start_run(*FINISHED, *changes).finish()
    assert code == 2
    lines = [line.split(":")[0].strip() for line in err.splitlines() if "cannot change" in line]
    assert lines == ["algo.hidden_dims", "algo.utd", "seed"]
    assert "[16, 16]" in err
    assert (finished_copy / "config.yaml").read_text() == before
    assert (finished_copy / ".lock").read_text() == lock


PRINTING = """
import gymnasium
from offpolicy.envs.toy import PointMass

class Printing(PointMass):
    def step(self, action):
        print(10_000 * "x")  # into train.log, on the disk of the run
        return super().step(action)

gymnasium.register("Printing-v0", Printing, max_episode_steps=20)
"""


@pytest.mark.promise("full-disk")
@pytest.mark.parametrize("prints", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_full_disk_does_not_stop_training_and_a_lost_final_save_exits_74(
    start_run: Any, small_disk: SmallDisk, tmp_path: Path, prints: bool
) -> None:
    small_disk.mount("128k")
    (tmp_path / "printing.py").write_text(PRINTING)
    env = ("env.id=printing:Printing-v0",) if prints else ()
    run = start_run("run_dir=disk/run", "checkpoint.every=150", "algo.hidden_dims=[64,64]", *env)
    code, out, err = run.finish()
    assert code == 74, err
    assert "not saved" in out
    assert "No space left" in err
