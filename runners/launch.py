"""From a checked configuration to an exit code: directory, memory, processes, summary."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from offpolicy.config import RunConfig
from offpolicy.errors import EXIT_OK, SaveError
from offpolicy.ipc.supervisor import Failure, Host, Supervisor, signals_held
from offpolicy.logger.logger import OffPolicyLogger, open_logger
from offpolicy.logger.record import RunHeader
from offpolicy.logger.summary import build_summary, write_summary
from offpolicy.rundir import RunDir, default_run_dir
from offpolicy.timing.clock import Stopwatch, unix_s, wall_clock_stamp
from offpolicy.types import SpaceSpec

from . import wiring
from .monitor import Monitor
from .preflight import check_fits, check_same, preflight, read_config, write_config

STOP_TIMEOUT_S = 30.0
SAVE_BYTES_PER_S = 50e6  # a slow disk: a large replay gets the time that saving it takes


def launch(cfg: RunConfig) -> int:
    """Train from the start, or go on where the run directory says; returns the exit code."""
    watch = Stopwatch()
    spec = preflight(cfg)
    shared = wiring.SharedMemory(cfg, spec)
    with RunDir.claim(_run_dir(cfg), cfg.resume) as run, signals_held():
        if run.checkpoint is not None:
            check_same(cfg, read_config(run.path))
            check_fits(cfg, spec, run.checkpoint)
        write_config(run.path, cfg, spec)
        with _opened(run.path / "train.log") as log_fd, contextlib.closing(_open_logger(cfg, run)) as logger:
            job, host = wiring.Assignment.for_run(cfg, spec, run), _host(cfg, spec, log_fd, watch)
            code, failure = _supervise(job, run, logger, shared, host)
    _last_words(failure)
    return code


def _run_dir(cfg: RunConfig) -> Path:
    if cfg.run_dir is not None:
        return Path(cfg.run_dir)
    return default_run_dir(Path("runs"), cfg.algo.name, cfg.env.id, wall_clock_stamp(), cfg.seed)


def _host(cfg: RunConfig, spec: SpaceSpec, log_fd: int, watch: Stopwatch) -> Host:
    """The run's id marks every process of it in its environment; a caller may have chosen it."""
    run_id = os.environ.get("OFFPOLICY_RUN_ID") or uuid.uuid4().hex
    stop_timeout_s = STOP_TIMEOUT_S + wiring.replay_nbytes(cfg, spec) / SAVE_BYTES_PER_S
    return Host(run_id, log_fd, stop_timeout_s, watch.elapsed_s)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor that appends to `path`: the children's stdout and stderr."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def _open_logger(cfg: RunConfig, run: RunDir) -> OffPolicyLogger:
    header = RunHeader(
        algo=cfg.algo.name,
        env_id=cfg.env.id,
        seed=cfg.seed,
        mode=cfg.collect_mode,
        total_timesteps=cfg.total_timesteps,
        device="" if cfg.device == "auto" else cfg.device,
        num_envs=cfg.env.num_envs,
        started_unix_s=unix_s(),
    )
    return open_logger(run.path, cfg, header, run.checkpoint.env_steps if run.checkpoint else None)


def _supervise(
    job: wiring.Assignment, run: RunDir, logger: OffPolicyLogger, shared: wiring.SharedMemory, host: Host
) -> tuple[int, Failure | None]:
    """Run the processes and write down how it ended; signals are heard until that is done."""
    _announce(logger, job.cfg, job.spec, run)
    monitor = Monitor(job.cfg, shared, logger, host.elapsed_s)
    with Supervisor(shared.control, tuple(shared.bells.values()), host) as supervisor:
        outcome: Outcome = ("failed", 1, "the supervisor failed")
        try:
            _spawn(supervisor, job, shared)
            logger.status("starting")
            supervisor.run(monitor.on_message, monitor.on_tick, job.cfg.env.step_timeout_s)
            outcome = _outcome(supervisor, monitor)
            monitor.log_rest()
        except BaseException as error:
            outcome = "failed", getattr(error, "exit_code", 1), f"supervisor: {error!r}"
            raise
        finally:
            is_written = _conclude(run.path, monitor, logger, outcome)
    code = outcome[1] if is_written else outcome[1] or SaveError.exit_code
    return code, supervisor.failure


def _spawn(supervisor: Supervisor, job: wiring.Assignment, shared: wiring.SharedMemory) -> None:
    package = __package__ or "runners"
    payload = job.to_json()
    # A runner is a module of this package with a `learner_main`.
    supervisor.spawn("learner", 0, f"{package}.{job.cfg.runner.name}:learner_main", payload, shared.fds)
    supervisor.spawn("collector", 0, f"{package}.collector:main", payload, shared.fds)


def _announce(logger: OffPolicyLogger, cfg: RunConfig, spec: SpaceSpec, run: RunDir) -> None:
    """The run header: what was decided for the user."""
    row_bytes, mib = wiring.row_layout(spec).nbytes, wiring.replay_nbytes(cfg, spec) / 2**20
    threads = wiring.thread_budget(cfg)
    logger.message(f"run directory: {run.path}")
    logger.message(f"replay: {cfg.replay_rows:,} rows x {row_bytes} B = {mib:.1f} MiB of shared memory")
    logger.message(
        f"{cfg.runner.name}, {cfg.collect_mode}: threads learner {threads['learner']}, collector {threads['collector']}"
    )
    for problem in run.rejected:
        logger.message(f"warning: {problem}")
    if run.checkpoint is not None:
        logger.message(f"resuming at env step {run.checkpoint.env_steps:,} from {run.checkpoint.path.name}")
    if os.uname().machine not in ("x86_64", "AMD64"):
        logger.message("warning: the shared-memory protocol is proven on x86-64 only")


Outcome = tuple[str, int, str]  # status, exit code, reason


def _outcome(supervisor: Supervisor, monitor: Monitor) -> Outcome:
    failure = supervisor.failure
    if monitor.is_complete and failure is None:
        return "completed", EXIT_OK, f"{monitor.snapshot().env_steps:,} env steps done"
    if supervisor.signal_code and (failure is None or failure.exit_code == 1):
        saved = f"checkpoint saved at env step {monitor.saved_steps[-1]:,}" if monitor.saved_steps else "nothing saved"
        return "interrupted", supervisor.signal_code, f"stopped by a signal; {saved}"
    if failure is not None:
        return "failed", failure.exit_code, f"{failure.role} {failure.index}: {failure.cause}"
    return "failed", 1, "the learner left before the budget was spent"


def _conclude(path: Path, monitor: Monitor, logger: OffPolicyLogger, outcome: Outcome) -> bool:
    """Write and show the summary; False when the disk does not take it."""
    status, code, reason = outcome
    summary = build_summary(
        monitor.snapshot(),
        status=status,
        exit_code=code,
        reason=reason,
        last_eval=monitor.last_eval,
        mode=logger.header.mode,
        baseline=logger.baseline,
        gpu=monitor.gpu,
    )
    try:
        write_summary(path / "summary.json", summary)
    except OSError as error:
        logger.message(f"summary.json not written: {error}")
        return False
    finally:
        logger.finish(summary)
    return True


def _last_words(failure: Failure | None) -> None:
    """The last block on stderr: the guilty process and its traceback."""
    if failure is None:
        return
    cause = failure.cause.splitlines()[0]  # the traceback ends with all of it
    who = f"{failure.role} {failure.index} (pid {failure.pid})"
    head = f"offpolicy: {who} failed at env step {failure.env_steps:,}: {cause}"
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"{failure.traceback}{head}\n")
        sys.stderr.flush()
