"""Dead collectors and learners that are started again, with processes that only remember what was done to them."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from offpolicy.errors import CheckpointError
from offpolicy.processes.control_page import CollectorWord, RankWord, Stop
from offpolicy.processes.restarts import LEARNERS, RestartPolicy
from tests.unit.processes.conftest import CRASH, KILLED, LOST, Stage, exit_of, spawned


@pytest.mark.promise("restart")
def test_a_killed_collector_is_started_again_with_the_time_of_a_start_and_is_not_gone() -> None:
    with Stage("learner-0", "collector-1", restarts=RestartPolicy(2)) as stage:
        words = stage.control.collectors[1]
        for word in (
            CollectorWord.PROGRESS,
            CollectorWord.IS_WAITING,
            CollectorWord.ENV_STEPS,
            CollectorWord.HAS_BEGUN,
        ):
            words.set(word, 7)
        script = {
            2: exit_of(stage, "collector-1", -9), 5: lambda: seen.append(stage.stop_level()),
            6: exit_of(stage, "learner-0"), 8: lambda: stage.follow("collector-1"),
        }  # fmt: skip
        seen: list[int] = []
        assert stage.run(script) is None
        assert seen == [Stop.RUN]
        [(name, message), started] = stage.messages
        assert (name, message["kind"]) == ("collector 1", "restart")
        assert started == ("collector 1", {"kind": "restarted", "pid": 1002})
        assert message["text"] == (
            "collector 1 (pid 1001) died at env step 14: was killed by SIGKILL; restart 1 of at most 2"
        )
        assert [words.get(word) for word in (CollectorWord.PROGRESS, CollectorWord.IS_WAITING)] == [0, 0]
        assert [words.get(word) for word in (CollectorWord.ENV_STEPS, CollectorWord.RESTARTS)] == [7, 1]


def test_too_many_deaths_of_a_collector_are_a_crash_loop() -> None:
    with Stage("learner-0", "collector-0", restarts=RestartPolicy(2)) as stage:
        deaths = {tick: lambda: stage.processes["collector-0"].exit(-11) for tick in (1, 4, 7)}
        failure = stage.run(deaths | {10: exit_of(stage, "learner-0")})
        assert stage.control.collectors[0].get(CollectorWord.IS_GONE) == 1
    assert failure is not None
    assert (failure.exit_code, failure.role) == (70, "collector")
    assert failure.cause.count("it was killed by SIGSEGV") == 3


def test_a_killed_learner_is_started_again_from_the_checkpoint_beside_the_collectors() -> None:
    with Stage("learner-0", "learner-1", "collector-0", learner_restarts=2) as stage:
        leader = stage.control.leader
        for word, value in ((RankWord.PROGRESS, 7), (RankWord.IS_WAITING, 1), (RankWord.SNAPSHOT_REQUEST, 3)):
            leader.set(word, value)
        seen: list[Any] = []
        failure = stage.run({
            2: exit_of(stage, "learner-1", -9),
            6: lambda: seen.append((stage.stop_level(), spawned(stage), stage.processes["collector-0"].code)),
            7: exit_of(stage, "learner-0"), 8: exit_of(stage, "learner-1"), 9: lambda: stage.follow("collector-0"),
        })  # fmt: skip
        assert failure is None
        assert seen == [(Stop.RUN, [(0, {"checkpoint": 40}), (1, {"checkpoint": 40})], 0)]
        words = (RankWord.PROGRESS, RankWord.IS_WAITING, RankWord.SNAPSHOT_RELEASE)
        assert [leader.get(word) for word in words] == [0, 0, 3]
        assert [message for _, message in stage.messages] == [
            {"kind": "restart", "text": f"learner 1 (pid 1001) died at env step 0: {KILLED}; restart 1 of at most 2"},
            {"kind": "restarted", "pid": 1003}, {"kind": "restarted", "pid": 1004},
        ]  # fmt: skip
    assert not stage.supervisor.must_start_over


def test_a_rank_that_notices_the_death_of_another_first_does_not_end_the_run() -> None:
    with Stage("learner-0", "learner-1", "collector-0", learner_restarts=2) as stage:
        seen: list[Any] = []
        stage.crash("learner-0", LOST)  # reaped first, although rank 1 died before
        stage.processes["learner-1"].exit(-11)
        failure = stage.run({
            3: lambda: seen.append(spawned(stage)),
            4: exit_of(stage, "learner-0"), 5: exit_of(stage, "learner-1"), 6: lambda: stage.follow("collector-0"),
        })  # fmt: skip
    assert failure is None
    assert [index for index, _ in seen[0]] == [0, 1]
    assert "learner 1 (pid 1001) died" in stage.messages[0][1]["text"]


@pytest.mark.promise("restart")
def test_where_the_others_cannot_stay_all_end_to_begin_again() -> None:
    roles, policy = ("learner-0", "collector-0", "evaluator-0"), RestartPolicy(2)
    with Stage(*roles, restarts=policy, learner_restarts=2, keeps_others=False) as stage:
        failure = stage.run({2: exit_of(stage, "learner-0", -9)})
        assert (failure, stage.supervisor.must_start_over) == (None, True)
        assert [stage.processes[name].code for name in ("collector-0", "evaluator-0")] == [-9, -9]
        assert [(name, message["kind"]) for name, message in stage.messages] == [("learner 0", "restart")]


def test_a_signal_meanwhile_ends_the_run() -> None:
    with Stage("learner-0", "collector-0", learner_restarts=2, keeps_others=False) as stage:
        kill = exit_of(stage, "learner-0", -9)
        stage.run({2: lambda: (kill(), os.kill(os.getpid(), signal.SIGINT))})
        assert (stage.supervisor.signal_code, stage.supervisor.must_start_over) == (130, False)


@pytest.mark.parametrize("keeps_others", [True, False])
def test_too_many_deaths_of_learners_are_a_crash_loop_that_names_them(keeps_others: bool) -> None:
    with Stage("learner-0", "learner-1", learner_restarts=1, keeps_others=keeps_others) as stage:
        stage.learner_deaths.add(LEARNERS, -11, {}, 5, "learner 1")
        failure = stage.run({2: exit_of(stage, "learner-0", -9)})
    assert failure is not None
    assert (failure.exit_code, failure.role, failure.index) == (70, "learner", 0)
    assert failure.cause == (
        "crash loop: they died 2 times within 10 minutes: at env step 5 learner 1 was killed by SIGSEGV; at env step 0"
        " learner 0 was killed by SIGKILL"
    )


@pytest.mark.parametrize("message", [None, CRASH])
def test_an_error_of_a_learner_is_not_survived(message: dict[str, Any] | None) -> None:
    with Stage("learner-0", learner_restarts=2) as stage:
        if message:
            stage.crash("learner-0", message)
        else:
            stage.processes["learner-0"].exit(3)
        failure = stage.run()
    assert failure is not None
    assert failure.exit_code == 1


def test_without_a_usable_checkpoint_a_dead_learner_ends_the_run() -> None:
    def renew() -> Any:
        raise CheckpointError("step-40: learner.safetensors is damaged")

    with Stage("learner-0", "collector-0", learner_restarts=2, renew=renew) as stage:
        failure = stage.run({2: exit_of(stage, "learner-0", -9), 5: lambda: stage.follow("collector-0")})
    assert failure is not None
    assert (failure.exit_code, failure.cause) == (66, "step-40: learner.safetensors is damaged")


def test_a_collector_that_cannot_be_started_again_lets_the_learner_save_and_is_named_after_its_death() -> None:
    with Stage("learner-0", "collector-0", restarts=RestartPolicy(2)) as stage:
        stage.refused.add("collector 0")
        levels: list[int] = []
        failure = stage.run({
            1: exit_of(stage, "collector-0", -9), 3: lambda: levels.append(stage.stop_level()),
            4: exit_of(stage, "learner-0"),
        })  # fmt: skip
        assert stage.processes["learner-0"].code == 0
    assert failure is not None
    assert (failure.role, failure.exit_code, levels) == ("collector", 1, [Stop.FINISH])
    assert failure.cause == "collector 0 cannot be started: Cannot allocate memory"
    ((_, told),) = stage.messages
    assert told["text"] == f"collector 0 (pid 1001) died at env step 0: {KILLED}; restart 1 of at most 2"
