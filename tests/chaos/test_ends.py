"""Ends that the judge must accept, and fake ones that it must reject: by exit code, culprit and cause."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.chaos import invariants
from tests.chaos.ends import End, Hit

pytestmark = pytest.mark.slow
HEADER = "run directory: run\n"
KILL, STOP = signal.SIGKILL, signal.SIGSTOP
LEARNER_KILLED = ("ring.copied@role=learner,n=3:kill",)
EXITED = ("message.send@role=collector,n=3:exit:3",)
HUNG = ("wake.wait@role=collector,n=3:hang",)
FULL = ("disk.write@role=learner,n=3:ENOSPC",)
NO_SPACE = "No space left on device (injected at disk.write)"
ONCE = {"collect.max_restarts": "1", "runner.max_restarts": "1"}


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


def test_ends_that_the_documents_name_are_accepted(tmp_path: Path) -> None:
    for end in (
        End(0, "", "", LEARNER_KILLED, hits("collector", "collector")),
        End(1, HEADER, line("killed by SIGKILL", "evaluator"), hits=hits("evaluator")),  # is not started again
        End(1, HEADER, line("exited with code 3 without being asked to"), EXITED),
        End(70, HEADER, line(LOOP), hits=hits("collector", "child"), options=ONCE),
        End(70, HEADER, line(STILL), HUNG),
        End(74, HEADER, line(f"SaveError: {NO_SPACE}", "learner"), FULL),
        End(130, HEADER, "", hits=hits("supervisor", number=signal.SIGINT)),
        End(-9, "", "", is_supervisor_hit=True),
    ):
        assert said_of(tmp_path, end) == "", end


def test_an_exit_code_that_nothing_explains_is_seen(tmp_path: Path) -> None:
    for end in (
        End(1, HEADER, line(KILLED), hits=hits("collector")),  # it comes back
        End(70, HEADER, line(LOOP), hits=hits("collector")),  # one death is no loop
        End(70, HEADER, line(STILL), hits=hits("collector", number=STOP, pause_s=1.0)),
        End(74, HEADER, line(NO_SPACE), LEARNER_KILLED),  # no disk was full
        End(143, HEADER, "", hits=hits("collector", number=signal.SIGTERM)),  # nobody has asked the run to stop
        End(66, "", "offpolicy: no usable checkpoint\n", LEARNER_KILLED),
    ):
        assert said_of(tmp_path, end).startswith(f"I6: exit code {end.code}"), end


def test_a_last_line_that_names_another_culprit_or_cause_is_seen(tmp_path: Path) -> None:
    for end in (
        End(1, HEADER, line("exited with code 3", "learner"), EXITED),  # the wrong role
        End(1, HEADER, line("KeyError: 'x'"), EXITED),  # the wrong cause
        End(74, HEADER, line("SaveError: Input/output error", "learner"), FULL),
        End(74, HEADER, "Traceback ...\nOSError: No space left on device\n", FULL),
        End(70, HEADER, "", HUNG),
    ):
        assert said_of(tmp_path, end).startswith("I7: "), end


def test_exit_codes_and_the_goal_must_agree(tmp_path: Path) -> None:
    for steps, end in (
        (899, End(0, "", "")),  # exit 0 before the goal
        (900, End(1, HEADER, line("exited with code 3"), EXITED)),  # a failure after the goal
    ):
        (tmp_path / "summary.json").write_text(json.dumps({"status": "completed", "env_steps": steps}))
        assert [text[:10] for text in invariants.check_end(tmp_path, end, 900)] == [f"I6: exit {end.code}"]
