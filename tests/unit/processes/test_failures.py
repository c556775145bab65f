"""Which failure a run ends with, and in which words."""

from __future__ import annotations

import pytest

from offpolicy.processes.control_page import CollectorWord
from offpolicy.processes.failures import Failure
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
