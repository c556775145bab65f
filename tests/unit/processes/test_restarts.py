"""Which deaths a run survives, and how many: all its processes are ended then, to begin again."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from offpolicy.errors import CrashLoopError
from offpolicy.processes.control_page import CollectorWord, Stop
from offpolicy.processes.deaths import Restarts
from tests.unit.processes.conftest import CRASH, KILLED, LOST, Stage, exit_of

WORKER = {"kind": "error", "text": "a worker was killed by SIGSEGV", "error": "EnvWorkerKilled", "code": 1}
ALL = ("learner-0", "learner-1", "collector-0", "evaluator-0")


@pytest.mark.promise("restart")
@pytest.mark.parametrize("dead", ALL)
def test_after_a_death_by_a_signal_all_processes_are_ended_and_begin_again(dead: str) -> None:
    with Stage(*ALL, max_restarts=4) as stage:
        stage.control.collectors[0][CollectorWord.ENV_STEPS] = 40
        assert stage.run({2: exit_of(stage, dead, -9)}) is None
        assert stage.supervisor.must_begin_again
        assert {process.poll() for process in stage.processes.values()} == {-9}
    name, pid = dead.replace("-", " "), 1000 + ALL.index(dead)
    text = f"{name} (pid {pid}) {KILLED} at env step 80; restart 1 of at most 4"
    assert stage.messages == [(name, {"kind": "warning", "text": text})]


@pytest.mark.promise("restart")
def test_a_killed_worker_of_environments_is_such_a_death() -> None:
    with Stage("learner-0", "collector-0", max_restarts=4) as stage:
        assert stage.run({2: lambda: stage.crash("collector-0", WORKER)}) is None
        assert stage.supervisor.must_begin_again


@pytest.mark.promise("restart")
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (3, {}),
        (0, {}),
        (1, CRASH),
        (-11, {"kind": "error", "text": "NaN", "error": "NumericsError", "code": 65}),  # it crashed on the way out
    ],
)
def test_an_exception_or_an_exit_of_its_own_ends_the_run(code: int, error: dict[str, Any]) -> None:
    with Stage("learner-0", "collector-0", max_restarts=4) as stage:
        if error:
            stage.send("collector-0", **error)
        stage.processes["collector-0"].exit(code)
        assert stage.run({3: exit_of(stage, "learner-0")}) is not None
        assert not stage.supervisor.must_begin_again


def test_where_no_death_is_survived_the_run_ends_with_its_cause() -> None:
    with Stage("learner-0", "collector-0", death_code=70) as stage:
        failure = stage.run_to_failure({2: exit_of(stage, "collector-0", -9), 4: exit_of(stage, "learner-0")})
        assert not stage.supervisor.must_begin_again
    assert (failure.exit_code, failure.cause.startswith("killed by SIGKILL")) == (70, True)


def test_of_two_ranks_the_one_that_has_lost_the_other_is_not_the_cause() -> None:
    with Stage("learner-0", "learner-1", max_restarts=4) as stage:

        def die() -> None:
            stage.crash("learner-0", LOST, 70)
            stage.processes["learner-1"].exit(-11)

        assert stage.run({2: die}) is None
        assert stage.supervisor.must_begin_again
    assert [name for name, _ in stage.messages] == ["learner 1"]


def test_a_death_during_a_stop_does_not_begin_anything_again() -> None:
    with Stage("learner-0", "collector-0", max_restarts=4) as stage:
        stage.run_to_failure({
            0: lambda: os.kill(os.getpid(), signal.SIGTERM),
            3: exit_of(stage, "collector-0", -9), 5: exit_of(stage, "learner-0"),
        })  # fmt: skip
        assert not stage.supervisor.must_begin_again
        assert (stage.supervisor.signal_code, stage.stop_level()) == (143, Stop.EXIT)


def test_a_signal_while_the_processes_end_is_the_end_of_the_run() -> None:
    with Stage("learner-0", "collector-0", max_restarts=4) as stage:

        def die() -> None:
            stage.processes["learner-0"].exit(-9)
            os.kill(os.getpid(), signal.SIGTERM)

        stage.run({2: die})
        assert (stage.supervisor.signal_code, stage.supervisor.must_begin_again) == (143, False)


@pytest.mark.promise("restart")
def test_one_death_too_many_is_a_crash_loop_that_names_all_of_them() -> None:
    now_s = 1000.0
    restarts = Restarts(2, lambda: now_s)
    assert [restarts.add("one"), restarts.add("two")] == ["restart 1 of at most 2", "restart 2 of at most 2"]
    with pytest.raises(CrashLoopError, match="3 deaths within 10 minutes.*max_restarts=2: one; two; three$"):
        restarts.add("three")
    assert restarts.total == 2


def test_deaths_of_more_than_ten_minutes_ago_do_not_count() -> None:
    now_s = [1000.0]
    restarts = Restarts(1, lambda: now_s[0])
    for _ in range(5):
        assert restarts.add("dead") == "restart 1 of at most 1"
        now_s[0] += 601.0
    assert restarts.total == 5


def test_a_crash_loop_ends_the_run_and_the_learner_saves() -> None:
    with Stage("learner-0", "collector-0", max_restarts=1) as stage:
        stage.restarts.add("collector 0 was killed before")
        levels = list[int]()
        failure = stage.run_to_failure({
            2: exit_of(stage, "collector-0", -9), 4: lambda: levels.append(stage.stop_level()),
            5: exit_of(stage, "learner-0"),
        })  # fmt: skip
        assert not stage.supervisor.must_begin_again
    assert (failure.exit_code, failure.cause.partition(":")[0], levels) == (70, "crash loop", [Stop.FINISH])
