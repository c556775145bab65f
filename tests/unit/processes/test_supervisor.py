"""Signals and ends of children, with processes that only remember what was done to them."""

from __future__ import annotations

import os
import signal

import pytest

from offpolicy.processes.control_page import CollectorWord, RankWord, Stop
from offpolicy.processes.supervisor import Failure
from tests.unit.processes.conftest import CRASH, LOST, Stage, exit_of, freeze


def test_run_ends_without_failure_when_the_learner_has_finished_and_the_collector_follows() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.send("learner-0", kind="hello", number=1)
        script = {2: exit_of(stage, "learner-0"), 5: lambda: stage.follow("collector-0")}
        assert stage.run(script) is None
        assert stage.messages == [("learner 0", {"kind": "hello", "number": 1})]
        assert stage.control.collectors[0][CollectorWord.IS_GONE] == 1
        assert stage.event.wait(0.0)


@pytest.mark.promise("no-silent-success")
def test_a_learner_that_exits_with_0_before_it_has_finished_is_named_and_not_the_rank_that_lost_it() -> None:
    with Stage("learner-0", "learner-1") as stage:
        script = {
            1: lambda: stage.processes["learner-1"].exit(0),  # an environment may call os._exit(0)
            3: lambda: stage.crash("learner-0", LOST, 70),
        }
        failure = stage.run_to_failure(script)
    assert (failure.role, failure.index, failure.exit_code) == ("learner", 1, 1)
    assert failure.cause.startswith("exited with code 0 without being asked to")


@pytest.mark.parametrize("role", ["collector", "evaluator"])
def test_a_process_that_is_killed_after_everything_was_saved_is_no_failure(role: str) -> None:
    with Stage("learner-0", f"{role}-0") as stage:
        assert stage.run({2: exit_of(stage, "learner-0"), 4: exit_of(stage, f"{role}-0", -9)}) is None
        text = f"{role} 0 (pid 1001) was killed by SIGKILL after the learner had finished"
        assert stage.messages == [(f"{role} 0", {"kind": "warning", "text": text})]


@pytest.mark.parametrize("max_restarts", [0, 4])
def test_a_learner_that_dies_on_the_way_out_has_finished(max_restarts: int) -> None:
    with Stage("learner-0", "collector-0", max_restarts=max_restarts) as stage:
        stage.send("learner-0", kind="finished", result=None)  # then a library crashes while it is taken down
        script = {2: exit_of(stage, "learner-0", -11), 4: lambda: stage.follow("collector-0")}
        assert stage.run(script) is None
        assert stage.restarts.total == 0
        text = "learner 0 (pid 1000) was killed by SIGSEGV after it had finished"
        assert ("learner 0", {"kind": "warning", "text": text}) in stage.messages


def test_a_rank_that_runs_on_is_not_waited_for_where_another_one_has_lost_it() -> None:
    with Stage("learner-0", "learner-1") as stage:
        failure = stage.run_to_failure({0: lambda: stage.crash("learner-0", LOST, 70)})
        assert stage.processes["learner-1"].code == -signal.SIGKILL
        assert stage.now_s <= 110.0  # it had a short time to notice the loss
    assert (failure.index, failure.cause) == (0, "PeerLostError: lost rank 1")


def test_a_signal_after_a_failure_does_not_make_it_an_interrupt() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.run_to_failure({
            0: lambda: stage.crash("collector-0", CRASH), 3: lambda: os.kill(os.getpid(), signal.SIGTERM),
            5: exit_of(stage, "learner-0"),
        })  # fmt: skip
        assert stage.supervisor.signal_code == 0


@pytest.mark.promise("exit-codes")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_the_first_signal_stops_the_run_in_order(number: signal.Signals, code: int) -> None:
    with Stage("learner-0") as stage:
        numbers = {0: number, 2: signal.SIGTERM}
        script = {tick: lambda number=number: os.kill(os.getpid(), number) for tick, number in numbers.items()}
        assert stage.run({**script, 5: exit_of(stage, "learner-0")}) is None
        assert (stage.supervisor.signal_code, stage.stop_level()) == (code, Stop.EXIT)


def test_leaving_the_context_kills_what_is_left_and_restores_the_handlers() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with Stage("learner-0") as stage:
        assert signal.getsignal(signal.SIGTERM) != handler
    assert stage.processes["learner-0"].code == -signal.SIGKILL
    assert signal.getsignal(signal.SIGTERM) == handler


@pytest.mark.promise("last-words")
def test_failure_names_the_child_its_error_and_the_env_steps_of_all_hosts() -> None:
    with Stage("learner-0", "collector-1") as stage:
        stage.control.collectors[0][CollectorWord.ENV_STEPS] = 40
        stage.crash("collector-1", CRASH)
        levels = list[int]()
        failure = stage.run({1: lambda: levels.append(stage.stop_level()), 3: exit_of(stage, "learner-0")})
        assert levels == [Stop.FINISH]  # the learner can save
    assert failure == Failure("collector", 1, 1001, 80, 1, "EnvFailure: step 3", "Traceback ...")


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (-9, "killed by SIGKILL; what it printed is in train.log"),
        (3, "exited with code 3 without being asked to; what it printed is in train.log"),
        (0, "exited with code 0 without being asked to; what it printed is in train.log"),
    ],
)
def test_a_child_that_exits_without_a_message_is_described_by_its_exit_code(code: int, cause: str) -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.processes["collector-0"].exit(code)
        failure = stage.run_to_failure({3: exit_of(stage, "learner-0")})
    assert (failure.exit_code, failure.cause) == (1, cause)


@pytest.mark.parametrize("first", ["learner-0", "learner-1"])
def test_a_consequence_is_replaced_by_its_cause_and_never_replaces_it(first: str) -> None:
    with Stage("learner-0", "learner-1") as stage:
        messages = {"learner-0": LOST, "learner-1": CRASH}
        second = "learner-1" if first == "learner-0" else "learner-0"
        stage.crash(first, messages[first])
        failure = stage.run_to_failure({2: lambda: stage.crash(second, messages[second])})
    assert (failure.index, failure.is_consequence) == (1, False)


def test_a_stop_that_takes_too_long_kills_all_and_is_a_hang() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0][CollectorWord.IS_WAITING] = 1
        failure = stage.run_to_failure({0: lambda: stage.supervisor.stop(Stop.FINISH)})
        assert stage.processes["collector-0"].code == -signal.SIGKILL
    assert failure.cause == "did not finish within 60 s of the stop request"


def test_a_collector_that_sleeps_on_after_a_stop_is_killed_in_time_and_named() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0][CollectorWord.IS_WAITING] = 1

        def stop() -> None:
            stage.supervisor.stop(Stop.FINISH)
            stage.control.leader[RankWord.SNAPSHOT_REQUEST] += 1

        assert stage.run({0: stop, 14: exit_of(stage, "learner-0")}) is None
        assert stage.processes["collector-0"].code == -signal.SIGKILL
        ((name, message),) = stage.messages
    assert (name, message["kind"]) == ("collector 0", "warning")
    assert message["text"].startswith("collector 0 (pid 1001) did not react for 10 s and was killed")


def test_a_collector_that_waits_for_a_slow_learner_is_left_alone() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0][CollectorWord.IS_WAITING] = 1
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
        failure = stage.run_to_failure({0: lambda: stage.supervisor.stop(Stop.FINISH)})
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


def test_a_pause_of_everything_extends_the_deadline_of_a_stop() -> None:
    def pause() -> None:
        stage.now_s += 1000.0

    with Stage("learner-0") as stage:
        script = {0: lambda: stage.supervisor.stop(Stop.FINISH), 10: pause, 50: exit_of(stage, "learner-0")}
        assert stage.run(script) is None


def test_a_process_that_the_kernel_holds_is_given_up_and_named() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.processes["learner-0"].is_held = True
        failure = stage.run_to_failure({0: lambda: stage.supervisor.stop(Stop.FINISH)})
        assert stage.processes["collector-0"].code == -signal.SIGKILL
    assert (failure.role, failure.exit_code) == ("learner", 70)
