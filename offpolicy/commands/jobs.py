"""Training runs started by another command: as child processes here, or as jobs of SLURM."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import offpolicy
from offpolicy.children import describe_exit
from offpolicy.config.overrides import as_override
from offpolicy.descendants import HELD_S
from offpolicy.errors import ConfigError, OffPolicyError
from offpolicy.files import atomic_write
from offpolicy.run_names import TRIAL
from offpolicy.timing.clock import Stopwatch

STOP_S = 60.0  # seconds that a run may take to save its checkpoint
CANCELLED_POLLS = 120  # polls in which a job of SLURM that was cancelled may still be in the queue
LOST_POLLS = 3  # polls after which a job of SLURM that left no exit code is lost: shared disks are late
UNKNOWN_JOB = "Invalid job id"  # squeue says so
JOB, EXIT, SCRIPT, OUT, ERR = "slurm.json", "exit", "job.sh", "out", "err"
RUN = "run"
# The run dies with this process. The root is on the path just for our own modules.
CHILD = (
    "import sys; sys.path.insert(0, sys.argv[1]); import offpolicy.children as c; c.die_with_parent(int(sys.argv[2]));"
    " from offpolicy.cli import main; sys.exit(main(['train', '--trust', *sys.argv[3:]]))"
)


class NotSubmitted(OffPolicyError):
    """SLURM has refused a job, or did not answer in time; or this machine has refused a process."""


class Job(Protocol):
    """A training run that was started."""

    def poll(self) -> int | None:
        """Returns the exit code; None while it runs."""
        ...

    def ask_to_stop(self) -> None:
        """Asks it to end as a user would, so that it saves a checkpoint. A second call does nothing."""
        ...

    def stop(self) -> None:
        """Asks it to end if nobody has yet, and waits where it can."""
        ...

    def last_error(self) -> str:
        """Returns the last line that it wrote to stderr, else how it ended."""
        ...


class Launcher(Protocol):
    """Starts training runs. `poll_s` is how often to ask for their state."""

    poll_s: float

    def start(self, words: Sequence[str], directory: Path) -> Job:
        """Starts `offpolicy train WORDS` in `directory`/run, or goes on with the run there."""
        ...


class LocalLauncher:
    """Runs on this machine. They die with this process, and may take `stop_s` to stop."""

    poll_s = 0.2

    def __init__(self, stop_s: float = STOP_S) -> None:
        self._stop_s = stop_s

    def start(self, words: Sequence[str], directory: Path) -> LocalJob:
        """Starts a child process, in a session of its own: Ctrl-C ends this process first, which stops the run.

        Raises `NotSubmitted` where the system has no room for it: on the disk, or for another process.
        """
        root = str(Path(offpolicy.__file__).parents[1])
        command = [sys.executable, "-P", "-c", CHILD, root, str(os.getpid()), *words, _run_dir(directory)]
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with (directory / OUT).open("ab") as out, (directory / ERR).open("wb") as err:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    env=os.environ | {TRIAL: "1"},
                )
        except OSError as error:
            raise NotSubmitted(f"{directory}: a process cannot be started: {error.strerror}") from error
        return LocalJob(process, directory, self._stop_s)


def _run_dir(directory: Path) -> str:
    """Returns the override that puts a run into the directory of its job."""
    return f"run_dir={as_override(str(directory / RUN))}"


class LocalJob:
    """A child process that trains."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path, stop_s: float) -> None:
        self._process, self._directory, self._stop_s = process, directory, stop_s
        self._asked: Stopwatch | None = None  # since it was asked to stop

    def wait(self, timeout_s: float) -> int | None:
        """Returns the exit code as soon as it is known; None after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def poll(self) -> int | None:
        """Returns the exit code; None while it runs."""
        return self._process.poll()

    def ask_to_stop(self) -> None:
        """Asks it to end as a user would: its time for that begins."""
        if self._asked is None and self._process.poll() is None:
            self._asked = Stopwatch()
            self._process.send_signal(signal.SIGTERM)  # SIGINT may be ignored, where this is a job of a script

    def stop(self) -> None:
        """Stops it as a user would, and kills what has not ended in time. Its children die with it.

        What the kernel holds, although it was killed, is given up after `HELD_S`.
        """
        try:
            self.ask_to_stop()
            if self._asked is not None:
                self.wait(max(self._stop_s - self._asked.elapsed_s(), 0.0))
        finally:
            self._process.kill()
            self.wait(HELD_S)

    def last_error(self) -> str:
        """Returns the last line of stderr, else how the process ended."""
        return last_line(self._directory / ERR) or describe_exit(self._process.returncode)


class SlurmLauncher:
    """Submits each run with `sbatch`. The directory must be on a disk that the nodes share."""

    def __init__(self, options: Sequence[str], poll_s: float = 5.0) -> None:
        self._options, self.poll_s = tuple(options), poll_s

    def start(self, words: Sequence[str], directory: Path) -> Job:
        """Submits a job, or finds the one that an earlier sweep has submitted.

        Raises `NotSubmitted` where `sbatch` fails, `ConfigError` where there is none, and `OffPolicyError`.
        """
        directory.mkdir(parents=True, exist_ok=True)
        known = _submitted(directory)
        if known is not None and known.is_cancelled:
            self._wait_for_end(known.number)  # it saves, and would leave its exit code to the next one
        elif known is not None and not (directory / EXIT).exists() and is_queued(known.number) is not False:
            return SlurmJob(known.number, directory)
        for left in (EXIT, ERR):  # of an earlier job, whose last error would be taken for that of this one
            (directory / left).unlink(missing_ok=True)
        script = directory / SCRIPT
        atomic_write(script, os.fsencode(job_script(words, directory)), durable=False)
        answer = self._submit(script)
        number = answer.strip().partition(";")[0]  # with a cluster's name behind, where there are several
        if not number.isdigit():
            raise OffPolicyError(f"sbatch: got {answer.strip()!r}, allowed the number of a job")
        _note(directory, Submitted(number))
        return SlurmJob(number, directory)

    def _submit(self, script: Path) -> str:
        try:
            return _slurm("sbatch", "--parsable", *self._options, str(script))
        except ConfigError:
            raise
        except OffPolicyError as error:
            raise NotSubmitted(str(error)) from error

    def _wait_for_end(self, number: str) -> None:
        """Returns when a job that was cancelled has left the queue. Raises `OffPolicyError` if it stays."""
        for _ in range(CANCELLED_POLLS):
            if is_queued(number) is False:
                return
            time.sleep(self.poll_s)
        raise OffPolicyError(f"squeue: job {number} was cancelled and is not known to have ended; try again later")


def job_script(words: Sequence[str], directory: Path) -> str:
    """Returns the script of a job: one task, whose exit code is left in a file."""
    place = directory.resolve()
    train = [sys.executable, "-m", "offpolicy", "train", "--trust", *words, _run_dir(place)]
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=offpolicy-{place.parent.name}-{place.name}",
        f"#SBATCH --output={_sbatch_path(place / OUT)}",
        f"#SBATCH --error={_sbatch_path(place / ERR)}",
        "#SBATCH --ntasks=1",
        "#SBATCH --open-mode=append",
        f"cd {shlex.quote(os.getcwd())} || exit 1",
        f"export {TRIAL}=1",
        f"srun {shlex.join(train)}",
        "code=$?",
        f"echo $code > {shlex.quote(str(place / EXIT))}.new",
        f"mv {shlex.quote(str(place / EXIT))}.new {shlex.quote(str(place / EXIT))}",
        "exit $code",
    ]
    return "\n".join(lines) + "\n"


def _sbatch_path(path: Path) -> str:
    """Returns a path as a line of `#SBATCH` has it: in quotes, and without `%j` and such, which SLURM replaces."""
    return shlex.quote(str(path).replace("%", "%%"))


class SlurmJob:
    """A job that was submitted."""

    def __init__(self, number: str, directory: Path) -> None:
        self._number, self._directory, self._missing, self._was_asked = number, directory, 0, False

    def poll(self) -> int | None:
        """Returns the exit code that the job has left; 1 for a job that is gone without one."""
        with suppress(OSError, ValueError):
            return int((self._directory / EXIT).read_text())
        is_known = is_queued(self._number)
        if is_known is not None:
            self._missing = 0 if is_known else self._missing + 1
        return 1 if self._missing >= LOST_POLLS else None

    def ask_to_stop(self) -> None:
        """Cancels the job: SLURM sends SIGTERM, on which the run saves a checkpoint, and kills it later.

        Raises `OffPolicyError` where SLURM does not.
        """
        if self._was_asked:
            return
        _slurm("scancel", self._number)
        self._was_asked = True
        with suppress(OSError):
            _note(self._directory, Submitted(self._number, is_cancelled=True))

    def stop(self) -> None:
        """Cancels the job if nobody has yet, and leaves the wait for its end to SLURM. Raises as `ask_to_stop`."""
        self.ask_to_stop()

    def last_error(self) -> str:
        """Returns the last line of stderr, else that the job left nothing."""
        return last_line(self._directory / ERR) or f"job {self._number} of SLURM is gone and left no exit code"


def check_slurm() -> None:
    """Refuses a machine without SLURM. Raises `ConfigError`."""
    _slurm("sbatch", "--version")


def is_queued(number: str) -> bool | None:
    """True if SLURM knows the job as pending or running, None if it does not answer. Raises `ConfigError`."""
    try:
        return bool(_slurm("squeue", "--noheader", "--jobs", number, "--format", "%T").strip())
    except ConfigError:
        raise
    except OffPolicyError as error:  # a job that ended a while ago is an invalid number
        return False if UNKNOWN_JOB in str(error) else None


class Submitted(NamedTuple):
    """A job as a file beside its run names it."""

    number: str
    is_cancelled: bool = False


def _submitted(directory: Path) -> Submitted | None:
    with suppress(OSError, ValueError, KeyError):
        noted = json.loads((directory / JOB).read_text())
        return Submitted(str(noted["job"]), bool(noted.get("is_cancelled")))
    return None


def _note(directory: Path, job: Submitted) -> None:
    noted = {"job": job.number, "is_cancelled": job.is_cancelled}
    atomic_write(directory / JOB, json.dumps(noted), durable=False)


def _slurm(*command: str) -> str:
    """Runs a command of SLURM and returns its output. Raises `ConfigError` where there is none, `OffPolicyError`."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60.0, check=False)
    except FileNotFoundError:
        raise ConfigError(f"--launcher: got slurm, but there is no {command[0]} here; use local") from None
    except subprocess.TimeoutExpired:
        raise OffPolicyError(f"{command[0]} gave no answer within 60 s") from None
    if result.returncode != 0:
        raise OffPolicyError(f"{shlex.join(command)}: {result.stderr.strip() or describe_exit(result.returncode)}")
    return result.stdout


def last_line(file: Path) -> str:
    """Returns the last line of a file that holds more than spaces; empty where there is none."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
