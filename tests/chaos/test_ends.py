"""Ends that the judge must accept, and fake ones that it must reject: by exit code, culprit and cause."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.chaos import invariants
from tests.chaos.ends import End, Hit

HEADER = "run directory: run\n"
BEGUN = HEADER + "learner 0: cpu, 1 thread\n"
KILL, STOP = signal.SIGKILL, signal.SIGSTOP
LEARNER_KILLED = ("ring.copied@role=learner,n=3:kill",)
EXITED = ("message.send@role=collector,n=3:exit:3",)
HUNG = ("wake.wait@role=collector,n=3:hang",)
FULL = ("disk.write@role=learner,n=3:ENOSPC",)
NO_SPACE = "No space left on device (injected at disk.write)"
ONCE = {"collect.max_restarts": "1", "runner.max_restarts": "1"}
NEVER = {"collect.max_restarts": "0", "runner.max_restarts": "0"}


def line(cause: str, role: str = "collector") -> str:
    """The last line on stderr of a run that has failed."""
    return f"offpolicy: {role} 0 (pid 7) failed at env step 12: {cause}\n"


def hits(*roles: str, number: int = KILL, pause_s: float = 0.0) -> tuple[Hit, ...]:
    return tuple(Hit(number, role, pause_s) for role in roles)


def said_of(tmp_path: Path, end: End) -> str:
    """What the judge says of a run that has reached its goal if it exits with 0, and failed otherwise."""
    summary = {"status": "completed" if end.code == 0 else "failed", "env_steps": 900}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    return "|".join(invariants.check_end(tmp_path, end, 900))


KILLED = "was killed by SIGKILL"
LOOP = "crash loop: it died 2 times within 10 minutes: at env step 3 it was killed by SIGKILL"
STILL = "no progress for 13 s, longer than env.step_timeout_s; the stacks of its threads are in train.log"


@pytest.mark.parametrize(
    "end",
    [
        End(0, "", ""),
        End(0, "", "", LEARNER_KILLED, hits("collector", "collector")),
        End(1, HEADER, line("killed by SIGKILL", "evaluator"), hits=hits("evaluator")),  # is not started again
        End(1, HEADER, line("killed by SIGKILL"), hits=hits("collector"), options=NEVER),
        End(1, HEADER, line("exited with code 3 without being asked to"), EXITED),
        End(1, HEADER, line("killed by SIGKILL", "learner"), LEARNER_KILLED, options=NEVER),
        End(70, HEADER, line(LOOP), hits=hits("collector", "child"), options=ONCE),
        End(70, HEADER, line(LOOP, "learner"), LEARNER_KILLED, hits("learner"), options=ONCE),
        End(70, HEADER, line(STILL), HUNG),
        End(70, HEADER, line(STILL), hits=hits("collector", number=STOP, pause_s=4.0)),
        End(70, HEADER, line(STILL), ("wake.wait@role=collector,n=2:delay:3000",)),
        End(2, "", "offpolicy: 1 configuration problem\n  run_dir: run cannot be created: No space left on device\n",
            ("run_dir.create@role=supervisor,n=1:ENOSPC",)),
        End(74, HEADER, line(f"SaveError: {NO_SPACE}", "learner"), FULL),
        End(1, HEADER, line("collector 0 cannot be started: Cannot allocate memory", "supervisor"),
            ("spawn@role=supervisor,n=2:ENOMEM",)),
        End(130, HEADER, "", hits=hits("supervisor", number=signal.SIGINT)),
        End(143, HEADER, "", hits=hits("supervisor", number=signal.SIGHUP)),
        End(-15, "", "", hits=hits("supervisor", number=signal.SIGTERM), early=frozenset({15})),
        End(-9, "", "", is_supervisor_hit=True),
    ],
)  # fmt: skip
def test_an_end_that_the_documents_name_is_accepted(tmp_path: Path, end: End) -> None:
    assert said_of(tmp_path, end) == ""


@pytest.mark.parametrize(
    "end",
    [
        End(1, HEADER, line(KILLED)),  # nothing happened
        End(1, HEADER, line(KILLED), hits=hits("collector")),  # it comes back
        End(1, HEADER, line(KILLED, "learner"), LEARNER_KILLED),
        End(1, HEADER, line("KeyError: 'x'"), hits=hits("learner", "collector"), options=ONCE),
        End(70, HEADER, line(LOOP), hits=hits("collector")),  # one death is no loop
        End(70, HEADER, line(LOOP), hits=hits("collector"), options=ONCE),
        End(70, HEADER, line(LOOP), hits=hits("collector", "collector"), options=NEVER),
        End(70, HEADER, line(STILL), LEARNER_KILLED),  # nobody hung
        End(70, HEADER, line(STILL), hits=hits("collector", number=STOP, pause_s=1.0)),
        End(70, HEADER, line(STILL), FULL),
        End(74, HEADER, line(NO_SPACE), LEARNER_KILLED),  # no disk was full
        End(2, "", "offpolicy: 1 configuration problem\n  run_dir: got 5\n", LEARNER_KILLED),
        End(2, BEGUN, line("Input/output error"), ("file.fsync@role=supervisor,n=9:EIO",)),  # too late for a refusal
        End(130, HEADER, "", hits=hits("supervisor", number=signal.SIGTERM)),
        End(143, HEADER, "", hits=hits("collector", number=signal.SIGTERM)),  # nobody has asked the run to stop
        End(-15, "", "", hits=hits("supervisor", number=signal.SIGTERM)),
        End(-9, "", ""),
        End(66, "", "offpolicy: no usable checkpoint\n", LEARNER_KILLED),
    ],
)
def test_an_exit_code_that_nothing_explains_is_seen(tmp_path: Path, end: End) -> None:
    assert said_of(tmp_path, end).startswith(f"I6: exit code {end.code}")


@pytest.mark.parametrize(
    "end",
    [
        End(1, HEADER, line("exited with code 3", "learner"), EXITED),  # the wrong role
        End(1, HEADER, line("KeyError: 'x'"), EXITED),  # the wrong cause
        End(1, HEADER, line("killed by SIGKILL", "collector"), LEARNER_KILLED, options=NEVER),
        End(1, HEADER, line("collector 0 cannot be started: Cannot allocate memory", "supervisor"),
            ("spawn@role=supervisor,n=2:EAGAIN",)),
        End(70, HEADER, line(STILL, "learner"), HUNG),
        End(70, HEADER, line(KILLED), HUNG),
        End(70, HEADER, line(KILLED), hits=hits("collector", "collector"), options=ONCE),
        End(74, HEADER, line("SaveError: Input/output error", "learner"), FULL),
        End(74, HEADER, "offpolicy: 1 configuration problem\n", FULL),
        End(74, HEADER, "Traceback ...\nOSError: No space left on device\n", FULL),
        End(2, "", "offpolicy: 1 configuration problem\n  run_dir: got 5\n", ("file.write@role=supervisor,n=1:EIO",)),
        End(1, "", "offpolicy: warning: OFFPOLICY_FAULT=... injects faults into this run\n", EXITED),
        End(70, HEADER, "", HUNG),
    ],
)  # fmt: skip
def test_a_last_line_that_names_another_culprit_or_cause_is_seen(tmp_path: Path, end: End) -> None:
    assert said_of(tmp_path, end).startswith("I7: ")


def test_a_failure_after_the_goal_is_seen(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"status": "completed", "env_steps": 900}))
    end = End(1, HEADER, line("exited with code 3"), EXITED)
    assert [text[:10] for text in invariants.check_end(tmp_path, end, 900)] == ["I6: exit 1"]


def test_a_refused_start_is_not_held_against_the_summary_of_the_life_before(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"status": "completed", "env_steps": 900}))
    said = "offpolicy: 1 configuration problem\n  replay.capacity: 0.01 GiB cannot be had: No space left on device\n"
    refused = End(2, "", said, ("memory.allocate@role=supervisor,n=1:ENOSPC",))
    assert list(invariants.check_end(tmp_path, refused, 900)) == []


@pytest.mark.parametrize(
    ("fault", "is_lost"),
    [
        ("console.write@role=supervisor,n=5:ENOSPC", True),
        ("console.write@role=supervisor,n=5:delay:50", False),
        ("file.write@role=supervisor,n=5:ENOSPC", False),
    ],
)
def test_output_is_lost_where_the_console_refuses_a_line(fault: str, is_lost: bool) -> None:
    assert End(0, HEADER, "", (fault,)).has_lost_output == is_lost


def test_exit_0_before_the_goal_is_seen(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"status": "completed", "env_steps": 899}))
    assert [text[:10] for text in invariants.check_end(tmp_path, End(0, "", ""), 900)] == ["I6: exit 0"]
