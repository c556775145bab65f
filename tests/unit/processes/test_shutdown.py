"""The deadline of a stop, and who is killed when."""

from __future__ import annotations

import os
import signal

import pytest

from offpolicy.processes.control_page import CollectorWord, RankWord, Stop
from tests.unit.processes.conftest import CRASH, Stage, exit_of, freeze, hold


def test_a_stop_that_takes_too_long_kills_all_and_is_a_hang() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0].set(CollectorWord.IS_WAITING, 1)
        failure = stage.run({0: lambda: stage.supervisor.stop(Stop.FINISH)})
        assert stage.processes["collector-0"].code == -signal.SIGKILL
    assert failure is not None
    assert failure.cause == "did not finish within 60 s of the stop request"


def test_a_signal_after_the_learner_has_finished_does_not_keep_the_collectors() -> None:
    with Stage("learner-0", "collector-0") as stage:
        levels: list[int] = []
        script = {
            0: exit_of(stage, "learner-0"), 2: lambda: os.kill(os.getpid(), signal.SIGTERM),
            4: lambda: levels.append(stage.stop_level()), 5: lambda: stage.follow("collector-0"),
        }  # fmt: skip
        assert stage.run(script) is None
        assert levels == [Stop.EXIT]


def test_a_collector_that_sleeps_on_after_a_stop_is_killed_in_time_and_named() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0].set(CollectorWord.IS_WAITING, 1)

        def stop() -> None:
            stage.supervisor.stop(Stop.FINISH)
            stage.control.leader.bump(RankWord.SNAPSHOT_REQUEST)

        assert stage.run({0: stop, 14: exit_of(stage, "learner-0")}) is None
        assert stage.processes["collector-0"].code == -signal.SIGKILL
        ((name, message),) = stage.messages
    assert (name, message["kind"]) == ("collector 0", "warning")
    assert message["text"].startswith("collector 0 (pid 1001) did not react for 10 s and was killed")


def test_a_collector_that_was_stopped_from_outside_costs_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    freeze(monkeypatch, "collector-0")
    with Stage("learner-0", "collector-0") as stage:
        script = {0: lambda: stage.supervisor.stop(Stop.FINISH), 14: exit_of(stage, "learner-0")}
        assert stage.run(script) is None
        assert stage.processes["collector-0"].code == -signal.SIGKILL


def test_a_collector_that_waits_for_a_slow_learner_is_left_alone() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0].set(CollectorWord.IS_WAITING, 1)
        script = {
            0: lambda: stage.supervisor.stop(Stop.FINISH),
            45: exit_of(stage, "learner-0"),
            47: lambda: stage.follow("collector-0"),
        }
        assert stage.run(script) is None
        assert (stage.messages, stage.processes["collector-0"].code) == ([], 0)


@pytest.mark.parametrize("frozen", ["learner-0", "learner-1"])
def test_the_process_that_outlives_the_deadline_of_a_stop_is_the_one_to_blame(
    monkeypatch: pytest.MonkeyPatch, frozen: str
) -> None:
    freeze(monkeypatch, frozen, among=("learner-0", "learner-1"))
    with Stage("learner-0", "learner-1") as stage:
        failure = stage.run({0: lambda: stage.supervisor.stop(Stop.FINISH)})
    assert failure is not None
    assert (failure.role, failure.index) == ("learner", int(frozen[-1]))


def test_half_way_through_a_stop_a_busy_collector_is_killed_without_a_failure_and_named() -> None:
    with Stage("learner-0", "collector-0") as stage:
        script = {0: lambda: stage.supervisor.stop(Stop.FINISH), 40: exit_of(stage, "learner-0")}
        assert stage.run(script) is None
        assert stage.processes["collector-0"].code == -signal.SIGKILL
        ((name, message),) = stage.messages
    assert (name, message["kind"]) == ("collector 0", "warning")
    assert message["text"] == (
        "collector 0 (pid 1001) was busy half-way to the deadline of the stop and was killed;"
        " what is saved now lacks its episodes"
    )


def test_a_collector_that_had_failed_before_it_was_killed_in_a_stop_is_the_failure() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.send("collector-0", **CRASH)
        failure = stage.run({0: lambda: stage.supervisor.stop(Stop.FINISH), 40: exit_of(stage, "learner-0")})
    assert failure is not None
    assert (failure.exit_code, failure.cause) == (1, "EnvFailure: step 3")


def test_a_pause_of_everything_extends_the_deadline_of_a_stop() -> None:
    def pause() -> None:
        stage.now_s += 1000.0

    with Stage("learner-0") as stage:
        script = {0: lambda: stage.supervisor.stop(Stop.FINISH), 10: pause, 50: exit_of(stage, "learner-0")}
        assert stage.run(script) is None


def test_a_process_that_the_kernel_holds_is_given_up_and_named() -> None:
    with Stage("learner-0", "collector-0") as stage:
        hold(stage, "learner-0")
        failure = stage.run({0: lambda: stage.supervisor.stop(Stop.FINISH)})
        assert stage.processes["collector-0"].code == -signal.SIGKILL
    assert failure is not None
    assert (failure.role, failure.exit_code) == ("learner", 70)
