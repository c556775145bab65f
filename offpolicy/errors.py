"""The errors of the library, each with the exit code its escape from a run produces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar


class OffPolicyError(Exception):
    """Root of the library's errors."""

    exit_code: ClassVar[int] = 1
    is_consequence: ClassVar[bool] = False  # of a failure elsewhere, which is the one to report


class ConfigError(OffPolicyError):
    """One or more configuration problems, all reported at once."""

    exit_code = 2

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class NumericsError(OffPolicyError):
    """A value that must be finite is not."""

    exit_code = 65


class CheckpointError(OffPolicyError):
    """No checkpoint can be used."""

    exit_code = 66


class HangError(OffPolicyError):
    """A process made no progress before its deadline."""

    exit_code = 70


class CrashLoopError(OffPolicyError):
    """Processes of the run, or an environment, died more often than `runner.max_restarts` allows."""

    exit_code = 70


class PeerLostError(OffPolicyError):
    """Another learner rank died, froze or cannot be reached: a consequence, whose cause is with that rank."""

    exit_code = 70
    is_consequence = True


class DesyncError(OffPolicyError):
    """Learner ranks that must hold the same numbers do not."""


class RunDirBusyError(OffPolicyError):
    """Another process holds the run directory."""

    exit_code = 73


class SaveError(OffPolicyError):
    """A checkpoint, or another file of the run, could not be written."""

    exit_code = 74


class PeerSaveError(SaveError):
    """Another learner rank could not save its part."""

    is_consequence = True


class StartError(OffPolicyError):
    """The machine refused to start a process of the run."""


class EnvFailure(OffPolicyError):
    """The user's environment raised; the message names its index, seed and step."""


class EnvWorkerKilled(EnvFailure):
    """A worker process of the user's environment was killed by a signal: like a collector that is killed."""


class PeerEnvFailure(EnvFailure):
    """The user's environment raised on another learner rank."""

    is_consequence = True


class Interrupted(KeyboardInterrupt):
    """A run of `offpolicy.train` was stopped by a signal, after it had saved what there was to save."""

    def __init__(self, run_dir: Path, exit_code: int, reason: str) -> None:
        self.run_dir, self.exit_code = run_dir, exit_code
        super().__init__(f"{reason}; offpolicy.TrainedRun.read({str(run_dir)!r}) has what was recorded")


def error_of(exit_code: int, cause: str) -> OffPolicyError:
    """Returns the error of a failed run: of the class that begins its cause, else of one with the exit code."""
    ours = [kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, OffPolicyError)]
    named = [kind for kind in ours if cause.startswith(f"{kind.__name__}: ")]
    direct = [kind for kind in OffPolicyError.__subclasses__() if kind.exit_code == exit_code != 1]
    return (named or direct or [OffPolicyError])[0](cause)


# exit codes that are not errors of ours
EXIT_OK = 0
EXIT_UNJUDGED = 75  # a condition of `compare --fail-on` could not be judged
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141  # who read the output has left; as after SIGPIPE
EXIT_TERMINATED = 143
