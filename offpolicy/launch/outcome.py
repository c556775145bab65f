"""The end of a run: its status and exit code, its summary, and the last lines on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NamedTuple

from offpolicy.collect.evaluations import read_results, stop_reason
from offpolicy.config.schema import RunConfig
from offpolicy.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_TERMINATED, Interrupted, error_of
from offpolicy.files import atomic_write
from offpolicy.launch.monitor import Monitor
from offpolicy.launch.run_dir import RunDir
from offpolicy.logger.console import shown_path
from offpolicy.logger.logger import OffPolicyLogger
from offpolicy.logger.provenance import Provenance
from offpolicy.logger.record import RunHeader
from offpolicy.logger.summary import RunResult, RunStatus, build_summary, write_summary
from offpolicy.output import drain, nonblocking
from offpolicy.processes.supervisor import Failure, Supervisor
from offpolicy.runs import SUMMARY, known_summary

RAN = "# ran: "


class Outcome(NamedTuple):
    """The first fields of `summary.json`."""

    status: RunStatus
    exit_code: int
    reason: str


def outcome_of(supervisor: Supervisor, monitor: Monitor, total: int) -> Outcome:
    """Returns how a run of `total` env steps ended whose processes have all exited."""
    failure = supervisor.failure
    if monitor.is_complete and failure is None:
        env_steps = monitor.snapshot().env_steps
        early = monitor.early_stop or "stopped early by an evaluation on the first host"
        return Outcome(RunStatus.COMPLETED, EXIT_OK, f"{env_steps:,} env steps done" if env_steps >= total else early)
    saved = f"checkpoint saved at env step {monitor.saved_steps[-1]:,}" if monitor.saved_steps else "nothing saved"
    if supervisor.signal_code and (failure is None or failure.exit_code == 1):
        return Outcome(RunStatus.INTERRUPTED, supervisor.signal_code, f"stopped by a signal; {saved}")
    if failure is not None:
        return Outcome(RunStatus.FAILED, failure.exit_code, f"{failure.role} {failure.index}: {failure.cause}")
    if monitor.stopped_by is not None:
        why = f"the host of rank {monitor.stopped_by} asked to stop; {saved}"
        return Outcome(RunStatus.INTERRUPTED, EXIT_TERMINATED, why)
    return Outcome(RunStatus.FAILED, 1, "the learner left before the budget was spent")


def is_complete(run: RunDir, cfg: RunConfig) -> bool:
    """True if the run of a claimed directory ended as it should, at the budget of `cfg` or early by its `stop`.

    A run that was resumed after its end and then killed may have its last checkpoint, beside the summary of before.
    """
    summary = known_summary(run.path)
    if run.checkpoint is None or summary.get("status") != RunStatus.COMPLETED:
        return False
    if summary.get("env_steps", 0) < run.checkpoint.env_steps:
        return False
    has_spent = run.checkpoint.env_steps >= cfg.total_timesteps
    return has_spent or stop_reason(read_results(run.path), cfg.stop) is not None


def already_complete(path: Path, env_steps: int, cfg: RunConfig) -> str:
    """Returns what to say and to type where a run of `env_steps` has nothing left to do for `cfg`."""
    shown, total, stop = shown_path(path), cfg.total_timesteps, cfg.stop
    done, given = f"{env_steps:,} of {total:,} env steps", "total_timesteps=..."
    typed = [f"total_timesteps={2 * env_steps}"]
    if env_steps < total and (reason := stop_reason(read_results(path), stop)) is not None:
        done, given = f"{reason}, after {done}", "other values"
        ways = {"stop.reward=null": stop.reward is not None, "stop.patience=0": stop.patience > 0}
        typed = [*(word for word, is_set in ways.items() if is_set), f"total_timesteps={total}"]
    return (
        f"already complete: {done}, in {shown}; nothing was changed\n"
        f"give {given} to go on: offpolicy resume {shown} {' '.join(typed)}"
    )


def failure_of(env_steps: int, exit_code: int, cause: str) -> Failure:
    """Returns the failure of a run whose processes cannot be started, or whose summary cannot be written."""
    return Failure("supervisor", 0, os.getpid(), env_steps, exit_code, cause)


def conclude(
    path: Path, monitor: Monitor, logger: OffPolicyLogger, outcome: Outcome, provenance: Provenance
) -> OSError | None:
    """Writes and shows the summary; returns what the disk refused."""
    summary = build_summary(
        monitor.snapshot(),
        logger.header,
        RunResult(
            **outcome._asdict(),
            last_eval=monitor.last_eval,
            training_return=logger.training_return,
            gpu=monitor.gpu,
            prediction_error=logger.prediction_error,
        ),
        baseline=logger.baseline,
        start=logger.start,
        config_mapping=logger.config_mapping,
    )
    summary["run"] = provenance.section()
    if called := monitor.callbacks.section():
        summary["callbacks"] = called
    note_what_ran(path / "config.yaml", logger.header)
    refusal = None
    try:
        write_summary(path / SUMMARY, summary)
    except OSError as error:
        logger.view.message(f"summary.json not written: {error}")
        refusal = error
    logger.finish(summary)
    return refusal


def note_what_ran(config_file: Path, header: RunHeader) -> None:
    """Adds the threads and the mode that ran last to `config.yaml`, as a comment: the keys stay what was asked for."""
    if not header.learner_threads:
        return
    ran = f"{RAN}threads.learner={header.learner_threads} threads.collector={header.collector_threads}"
    with contextlib.suppress(OSError, ValueError):  # a full disk: the summary says it too; a file that is no text
        before = config_file.stat()
        lines = [line for line in config_file.read_text(encoding="utf-8").splitlines() if not line.startswith(RAN)]
        atomic_write(config_file, "\n".join([*lines, f"{ran} collect.mode={header.mode}", ""]), durable=False)
        os.utime(config_file, ns=(before.st_atime_ns, before.st_mtime_ns))  # runs are listed in the order of starts


def print_failure(failure: Failure | None, path: Path) -> None:
    """Writes the last block on stderr: a traceback only of what is not ours, the process that failed, what to type."""
    if failure is None:
        return
    cause, _, rest = failure.cause.partition("\n")  # the rest is the traceback of the user's environment
    process = f"{failure.role} {failure.index} (pid {failure.pid})"
    head = f"offpolicy: {process} failed at env step {failure.env_steps:,}: {cause}"
    shown = failure.traceback or (rest and f"{rest}\n")
    with contextlib.suppress(Exception):  # of whatever a program has as its stderr: the exit code says it too
        stream = nonblocking(sys.stderr)
        stream.write(f"{shown}offpolicy: what the processes printed: {shown_path(path / 'train.log')}\n{head}\n")
        stream.flush()
        drain(stream)


def require_completed(code: int, path: Path, failure: Failure | None) -> None:
    """Raises `Interrupted` for a run that a signal has stopped, and for one that has failed the error of its process.

    `code`: the exit code of the run; `path`: its directory.
    """
    if code in (EXIT_INTERRUPTED, EXIT_TERMINATED):
        raise Interrupted(path.absolute(), code, str(known_summary(path).get("reason", "stopped by a signal")))
    if code != EXIT_OK:
        cause = "no reason is known" if failure is None else failure.cause
        raise error_of(code, f"{cause}\nwhat the processes printed: {shown_path(path.absolute() / 'train.log')}")
