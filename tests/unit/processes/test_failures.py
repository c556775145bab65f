"""Which failure a run ends with, and in which words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from offpolicy.processes.child_processes import Child, Start
from offpolicy.processes.control_page import CollectorWord
from offpolicy.processes.failures import Failure, FailureRecord
from tests.unit.processes.conftest import CRASH, LOST, Stage, exit_of


@pytest.mark.promise("last-words")
def test_failure_names_the_child_its_error_and_the_env_steps_of_all_hosts() -> None:
    with Stage("learner-0", "collector-1") as stage:
        stage.control.collectors[0].set(CollectorWord.ENV_STEPS, 40)
        stage.crash("collector-1", CRASH)
        failure = stage.run({3: exit_of(stage, "learner-0")})
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
        failure = stage.run({3: exit_of(stage, "learner-0")})
    assert failure is not None
    assert (failure.exit_code, failure.cause) == (1, cause)


@pytest.mark.parametrize("first", ["learner-0", "learner-1"])
def test_a_consequence_is_replaced_by_its_cause_and_never_replaces_it(first: str) -> None:
    with Stage("learner-0", "learner-1") as stage:
        messages = {"learner-0": LOST, "learner-1": CRASH}
        second = "learner-1" if first == "learner-0" else "learner-0"
        stage.crash(first, messages[first])
        failure = stage.run({2: lambda: stage.crash(second, messages[second])})
    assert failure is not None
    assert (failure.index, failure.is_consequence) == (1, False)


class NoOom:
    """The kernel has killed nobody, or what `cause` says."""

    def __init__(self, cause: str | None = None) -> None:
        self._cause = cause

    def cause(self) -> str | None:
        return self._cause


def child(error: dict[str, Any] | None = None) -> Child:
    made = Child(Start("learner", 0, "module:main", {}, {}), SimpleNamespace(pid=1000), -1, -1)  # type: ignore[arg-type]
    made.error = error or {}
    return made


def record(cause: str | None = None) -> FailureRecord:
    return FailureRecord(NoOom(cause), lambda: 40)  # type: ignore[arg-type]


def test_a_death_for_want_of_memory_is_told_from_one_by_hand_and_from_another_signal() -> None:
    text = "was killed by the kernel: out of memory"
    for code, expected in ((-9, "killed by the kernel: out of memory"), (-11, "killed by SIGSEGV")):
        failures = record(text)
        failures.note_exit(child(), code)
        assert failures.first is not None
        assert failures.first.cause == f"{expected}; what it printed is in train.log"
    assert record(text).error_of(child(CRASH), -9) == {"text": text}
    assert record().error_of(child(CRASH), -9) == CRASH


def test_the_first_failure_stays_and_one_that_is_set_takes_its_place() -> None:
    failures = record()
    failures.note_exit(child(CRASH), 1)
    first = failures.first
    failures.note_exit(child(), -9)
    assert failures.first is first
    failures.set(child(), 70, "crash loop")
    assert failures.first == Failure("learner", 0, 1000, 40, 70, "crash loop")
