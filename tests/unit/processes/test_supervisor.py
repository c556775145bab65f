"""Signals and ends of children, with processes that only remember what was done to them."""

from __future__ import annotations

import os
import signal

import pytest

from offpolicy.processes.control_page import CollectorWord, HostWord, Stop
from tests.unit.processes.conftest import CRASH, LOST, Stage, exit_of


def test_run_ends_without_failure_when_the_learner_has_finished_and_the_collector_follows() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.send("learner-0", kind="hello", number=1)
        script = {2: exit_of(stage, "learner-0"), 5: lambda: stage.follow("collector-0")}
        assert stage.run(script) is None
        assert stage.messages == [("learner 0", {"kind": "hello", "number": 1})]
        assert stage.control.collectors[0].get(CollectorWord.IS_GONE) == 1
        assert stage.event.wait(0.0)


@pytest.mark.promise("no-silent-success")
def test_a_learner_that_exits_with_0_before_it_has_finished_is_named_and_not_the_rank_that_lost_it() -> None:
    with Stage("learner-0", "learner-1") as stage:
        script = {
            1: lambda: stage.processes["learner-1"].exit(0),  # an environment may call os._exit(0)
            3: lambda: stage.crash("learner-0", LOST, 70),
        }
        failure = stage.run(script)
    assert failure is not None
    assert (failure.role, failure.index, failure.exit_code) == ("learner", 1, 1)
    assert failure.cause.startswith("exited with code 0 without being asked to")


def test_learner_is_asked_to_finish_when_a_collector_fails() -> None:
    levels: list[int] = []
    with Stage("learner-0", "collector-0") as stage:
        stage.crash("collector-0", CRASH)
        stage.run({1: lambda: levels.append(stage.stop_level()), 3: exit_of(stage, "learner-0")})
    assert levels == [Stop.FINISH]


@pytest.mark.parametrize("role", ["collector", "evaluator"])
def test_a_process_that_is_killed_after_everything_was_saved_is_no_failure(role: str) -> None:
    with Stage("learner-0", f"{role}-0") as stage:
        assert stage.run({2: exit_of(stage, "learner-0"), 4: exit_of(stage, f"{role}-0", -9)}) is None
        text = f"{role} 0 (pid 1001) was killed by SIGKILL after the learner had finished"
        assert stage.messages == [(f"{role} 0", {"kind": "warning", "text": text})]


@pytest.mark.parametrize("max_restarts", [0, 4])
def test_a_learner_that_dies_on_the_way_out_has_finished(max_restarts: int) -> None:
    with Stage("learner-0", "collector-0", max_restarts=max_restarts) as stage:
        script = {2: lambda: died_on_the_way_out(stage, "learner-0"), 4: lambda: stage.follow("collector-0")}
        assert stage.run(script) is None
        assert stage.restarts.total == 0
        text = "learner 0 (pid 1000) was killed by SIGSEGV after it had finished"
        assert ("learner 0", {"kind": "warning", "text": text}) in stage.messages


def died_on_the_way_out(stage: Stage, name: str) -> None:
    """The main function of a child has returned; then a library crashes while it is taken down."""
    stage.send(name, kind="finished")
    stage.processes[name].exit(-signal.SIGSEGV)


def test_other_ranks_have_a_short_grace_after_a_rank_died() -> None:
    with Stage("learner-0", "learner-1") as stage:
        stage.processes["learner-0"].exit(-9)
        stage.run()
        assert stage.processes["learner-1"].code == -signal.SIGKILL
        assert stage.now_s <= 100.0 + 10.0


def test_a_rank_that_runs_on_is_not_waited_for_where_another_one_has_lost_it() -> None:
    with Stage("learner-0", "learner-1") as stage:
        failure = stage.run({0: lambda: stage.crash("learner-0", LOST, 70)})
        assert stage.processes["learner-1"].code == -signal.SIGKILL
    assert failure is not None
    assert (failure.index, failure.cause) == (0, "PeerLostError: lost rank 1")


def test_of_two_ranks_that_have_lost_a_third_and_are_both_dead_each_is_reaped_once() -> None:
    """The second was reaped for the sake of the first, and the first again for the sake of the second."""
    with Stage("learner-0", "learner-1", "collector-0") as stage:

        def lose() -> None:
            stage.crash("learner-0", LOST, 70)
            stage.crash("learner-1", LOST, 70)

        failure = stage.run({1: lose, 4: lambda: stage.follow("collector-0")})
    assert failure is not None
    assert (failure.role, failure.exit_code, failure.cause) == ("learner", 70, "PeerLostError: lost rank 1")


def test_a_collector_in_a_long_step_has_the_time_of_the_ranks_that_notice_a_loss() -> None:
    """It was killed at once, as half-way to the deadline of a stop; nothing is saved that would need it."""
    with Stage("learner-0", "learner-1", "collector-0") as stage:
        seen = list[int | None]()

        def look() -> None:
            seen.append(stage.processes["collector-0"].poll())

        stage.processes["learner-1"].exit(-9)
        stage.run({1: look, 2: lambda: stage.crash("learner-0", LOST, 70), 3: lambda: stage.follow("collector-0")})
        assert seen == [None]
        assert stage.messages == []


def test_a_process_that_fails_after_everything_was_saved_is_the_failure() -> None:
    with Stage("learner-0", "collector-0") as stage:
        failure = stage.run({0: exit_of(stage, "learner-0"), 2: lambda: stage.crash("collector-0", CRASH)})
    assert failure is not None
    assert (failure.role, failure.cause) == ("collector", "EnvFailure: step 3")


def test_a_signal_after_a_failure_does_not_make_it_an_interrupt() -> None:
    with Stage("learner-0", "collector-0") as stage:
        failure = stage.run({
            0: lambda: stage.crash("collector-0", CRASH), 3: lambda: os.kill(os.getpid(), signal.SIGTERM),
            5: exit_of(stage, "learner-0"),
        })  # fmt: skip
        assert failure is not None
        assert stage.supervisor.signal_code == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_the_first_signal_stops_the_run_in_order(number: signal.Signals, code: int) -> None:
    with Stage("learner-0") as stage:
        assert stage.run({0: lambda: os.kill(os.getpid(), number), 5: exit_of(stage, "learner-0")}) is None
        assert (stage.supervisor.signal_code, stage.stop_level()) == (code, Stop.EXIT)


def test_usr1_asks_the_learner_for_a_checkpoint_and_the_run_goes_on() -> None:
    with Stage("learner-0") as stage:
        stopped = list[int]()
        script = {
            1: lambda: os.kill(os.getpid(), signal.SIGUSR1),
            4: lambda: stopped.append(stage.stop_level()),
            6: exit_of(stage, "learner-0"),
        }
        assert stage.run(script) is None
        assert (stage.control.host.get(HostWord.SAVE_REQUEST), stopped) == (1, [Stop.RUN])
        assert stage.supervisor.signal_code == 0


def test_a_second_interrupt_kills_at_once() -> None:
    with Stage("learner-0") as stage:
        interrupt = {tick: lambda: os.kill(os.getpid(), signal.SIGINT) for tick in (0, 5)}
        assert stage.run(interrupt) is None
        assert stage.processes["learner-0"].code == -signal.SIGKILL
        assert stage.supervisor.signal_code == 130


def test_leaving_the_context_kills_what_is_left_and_restores_the_handlers() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with Stage("learner-0") as stage:
        assert signal.getsignal(signal.SIGTERM) != handler
    assert stage.processes["learner-0"].code == -signal.SIGKILL
    assert signal.getsignal(signal.SIGTERM) == handler
