"""The failure with which a run ends: which process, when, and why."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from offpolicy.children import describe_exit
from offpolicy.errors import EnvWorkerKilled
from offpolicy.processes.child_processes import Child
from offpolicy.processes.oom import OomWatch


@dataclass(frozen=True, slots=True)
class Failure:
    """The process that failed and the cause; the last block on stderr."""

    role: str
    index: int
    pid: int
    env_steps: int  # transitions collected when it was noticed
    exit_code: int
    cause: str
    traceback: str = ""
    is_consequence: bool = False  # of another failure: replaced by it when it is known


class FailureRecord:
    """The first failure of a run, unless it was a consequence of a later one."""

    def __init__(self, oom: OomWatch, env_steps: Callable[[], int], death_code: int) -> None:
        """`env_steps` returns the transitions of the run so far; `death_code` is the exit code of a death."""
        self._oom, self._read_env_steps, self._death_code = oom, env_steps, death_code
        self.first: Failure | None = None

    @property
    def env_steps(self) -> int:
        """Transitions of the run so far."""
        return self._read_env_steps()

    def set(self, child: Child, exit_code: int, cause: str, traceback: str = "") -> None:
        """Makes this the failure of the run."""
        self.first = self.of(child, exit_code, cause, traceback)

    def note_exit(self, child: Child, code: int) -> None:
        """Records an unexpected exit: the first one counts, unless it was only a consequence of this one."""
        error = child.error
        is_consequence = bool(error.get("is_consequence"))
        if self.first is not None and not (self.first.is_consequence and not is_consequence):
            return
        cause = self.cause_of(child, code)
        if not error:
            end = cause.removeprefix("was ") + (" without being asked to" if code >= 0 else "")
            cause = f"{end}; what it printed is in train.log"
        text = f"{error['error']}: {cause}" if "error" in error else cause
        exit_code = self._death_code if is_death(code, error) else int(error.get("code", 1))
        traceback = error.get("traceback", "")
        self.first = self.of(child, exit_code, text, traceback, is_consequence=is_consequence)

    def of(
        self, child: Child, exit_code: int, cause: str, traceback: str = "", *, is_consequence: bool = False
    ) -> Failure:
        """Returns a failure of a child at this env step, without recording it."""
        return Failure(
            child.role, child.index, child.process.pid, self.env_steps, exit_code, cause, traceback, is_consequence
        )

    def cause_of(self, child: Child, code: int) -> str:
        """Returns the error of a dead child, why the kernel has killed it, or how it has ended."""
        killed = self._oom.cause() if code == -signal.SIGKILL else None
        return str(child.error.get("text") or killed or describe_exit(code))


def is_death(code: int, error: Mapping[str, Any]) -> bool:
    """True if a signal has ended a child with this exit code and error message, or a worker of its environments."""
    return error["error"] == EnvWorkerKilled.__name__ if "error" in error else code < 0
