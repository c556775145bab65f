"""Children that make no progress, or wait for each other."""

from __future__ import annotations

import signal

import pytest

from offpolicy.processes.control_page import CollectorWord, RankWord, Stop
from tests.unit.processes.conftest import CRASH, Stage, exit_of

HELD = "did not end although it was killed: the kernel holds it"


@pytest.mark.promise("no-hang")
def test_a_hung_collector_writes_its_stacks_and_is_killed() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0][CollectorWord.PROGRESS] += 1
        failure = stage.run_to_failure({30: exit_of(stage, "learner-0")})
        assert stage.processes["collector-0"].signals == [signal.SIGUSR2]
    assert (failure.role, failure.exit_code) == ("collector", 70)
    assert failure.cause.startswith("no progress for 18 s, longer than env.step_timeout_s")


def test_children_that_wait_for_each_other_end_the_run() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0][CollectorWord.IS_WAITING] = 1
        stage.control.leader[RankWord.IS_WAITING] = 1
        failure = stage.run_to_failure()
    assert (failure.exit_code, failure.cause) == (70, "learner and collector waited for each other for 10 s")


@pytest.mark.parametrize("order", ["step", "snapshot"])
def test_a_collector_that_waits_although_it_could_go_on_is_the_one_to_blame_and_the_learner_can_save(
    order: str,
) -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0][CollectorWord.IS_WAITING] = 1
        stage.control.leader[RankWord.IS_WAITING] = 1
        stage.control.leader[RankWord.GRANTED if order == "step" else RankWord.SNAPSHOT_REQUEST] = 1
        failure = stage.run_to_failure({20: exit_of(stage, "learner-0")})
        assert stage.processes["learner-0"].code == 0
    assert (failure.role, failure.exit_code) == ("collector", 70)
    assert failure.cause == "the others waited for it, which waited although it could go on, for 10 s"


def test_a_child_that_hangs_while_a_failed_run_ends_does_not_take_the_place_of_the_failure() -> None:
    with Stage("learner-0", "collector-0", "collector-1") as stage:
        stage.control.collectors[1][CollectorWord.PROGRESS] += 1
        failure = stage.run_to_failure({0: lambda: stage.crash("collector-0", CRASH), 25: exit_of(stage, "learner-0")})
        assert stage.processes["collector-1"].signals == []
    assert (failure.index, failure.cause) == (0, "EnvFailure: step 3")


def test_children_that_wait_while_the_run_ends_are_not_taken_for_deadlocked() -> None:
    def finish_all() -> None:
        for name in ("learner-0", "collector-0"):
            stage.finish(name)

    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0][CollectorWord.IS_WAITING] = 1
        stage.control.leader[RankWord.IS_WAITING] = 1
        assert stage.run({0: lambda: stage.supervisor.stop(Stop.FINISH), 25: finish_all}) is None
        assert stage.now_s >= 125.0


def test_a_hung_collector_that_the_kernel_holds_is_given_up_and_the_learner_can_save() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.processes["collector-0"].is_held = True
        stage.control.collectors[0][CollectorWord.PROGRESS] += 1
        levels: list[int] = []
        failure = stage.run_to_failure({22: lambda: levels.append(stage.stop_level()), 30: exit_of(stage, "learner-0")})
        assert levels == [Stop.RUN]  # it has the time to end
        assert stage.control.collectors[0][CollectorWord.IS_GONE] == 1
        assert stage.processes["learner-0"].code == 0
        assert ("collector 0", {"kind": "warning", "text": f"collector 0 (pid 1001) {HELD}"}) in stage.messages
    assert failure.cause.startswith("no progress for 18 s")


def test_a_collector_that_hangs_while_it_closes_its_environments_ends_as_it_has_failed() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0][CollectorWord.PROGRESS] += 1
        stage.send("collector-0", **CRASH)
        failure = stage.run_to_failure({30: exit_of(stage, "learner-0")})
        assert stage.processes["collector-0"].signals == [signal.SIGUSR2]
    assert (failure.exit_code, failure.cause, failure.traceback) == (1, "EnvFailure: step 3", "Traceback ...")


@pytest.mark.parametrize(
    ("role", "replay_s", "limit_s"),
    [
        *(("collector", 0, 18), ("learner", 0, 600), ("evaluator", 0, 120)),
        *(("collector", 1000, 1120), ("learner", 1000, 1120), ("evaluator", 1000, 120)),  # while they start
    ],
)
def test_a_busy_child_without_progress_hangs_after_the_limit_of_its_role(
    role: str, replay_s: float, limit_s: int
) -> None:
    with Stage(f"{role}-0", replay_s=replay_s) as stage:
        if not replay_s:
            stage.control.words(role, 0)[RankWord.PROGRESS] += 1
        failure = stage.run_to_failure()
        assert stage.now_s == pytest.approx(100.0 + limit_s, abs=3.0)
    assert failure.cause.startswith(f"no progress for {limit_s} s, longer than ")
    assert ("and the time to read the replay" in failure.cause) == (limit_s > 1000)


def test_a_child_that_waits_never_hangs_and_its_limit_starts_when_it_resumes() -> None:
    with Stage("learner-0", "collector-0") as stage:
        words = stage.control.collectors[0]
        words[CollectorWord.PROGRESS] += 1
        words[CollectorWord.IS_WAITING] = 1
        resume = lambda: words.__setitem__(CollectorWord.IS_WAITING, 0)  # noqa: E731
        failure = stage.run_to_failure({100: resume, 140: exit_of(stage, "learner-0")})
    assert failure.cause.startswith("no progress for 18 s")


def test_a_pause_of_everything_counts_against_no_child() -> None:
    def pause() -> None:
        stage.now_s += 1000.0

    with Stage("collector-0") as stage:
        stage.control.collectors[0][CollectorWord.PROGRESS] += 1
        script = {15: pause, 17: lambda: stage.supervisor.stop(Stop.EXIT), 18: exit_of(stage, "collector-0")}
        assert stage.run(script) is None


@pytest.mark.parametrize("moving", ["learner", "collector", "counts"])
def test_one_busy_child_or_counts_that_move_are_no_deadlock(moving: str) -> None:
    with Stage("learner-0", "collector-0") as stage:
        for role in ("learner", "collector"):
            stage.control.words(role, 0)[RankWord.IS_WAITING] = int(role != moving)

        def move() -> None:
            word = CollectorWord.ENV_STEPS if moving == "counts" else CollectorWord.PROGRESS
            (stage.control.leader if moving == "learner" else stage.control.collectors[0])[word] += 1

        script = dict.fromkeys(range(0, 100, 8), move)
        assert stage.run({**script, 100: exit_of(stage, "learner-0"), 102: lambda: stage.follow("collector-0")}) is None


def test_a_collector_that_writes_its_part_of_a_checkpoint_has_the_time_of_a_disk() -> None:
    with Stage("collector-0") as stage:
        stage.control.collectors[0][CollectorWord.PROGRESS] += 1
        stage.control.collectors[0][CollectorWord.IS_SAVING] = 1
        failure = stage.run_to_failure()
    assert failure.cause.startswith("no progress for 600 s, longer than its part of a checkpoint may take")
