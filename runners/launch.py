"""From a checked configuration to an exit code, on one host: directory, memory, processes, summary."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from offpolicy.commands import trace
from offpolicy.config.run_files import env_differences, read_config, write_config
from offpolicy.config.schema import RANK_RUNNERS, RunConfig
from offpolicy.distributed.host_info import LOOPBACK_HOST, HostInfo
from offpolicy.errors import EXIT_OK, EXIT_TERMINATED, ConfigError, SaveError
from offpolicy.launch.hosts import LaunchPlan, follow_launcher, plan_launch
from offpolicy.launch.monitor import TRACED_LEVELS, Monitor
from offpolicy.launch.preflight import check_fits, check_same, preflight
from offpolicy.launch.run_dir import RunDir
from offpolicy.launch.teacher import find_teacher
from offpolicy.logger.logger import OffPolicyLogger, open_logger
from offpolicy.logger.record import RunHeader
from offpolicy.logger.summary import build_summary, write_summary
from offpolicy.nets.flops import work_of
from offpolicy.processes.signals import signals_held
from offpolicy.processes.supervisor import Failure, Supervisor, SupervisorConfig
from offpolicy.timing.clock import Stopwatch, unix_s
from offpolicy.timing.trace_reader import shrink_lanes
from offpolicy.timing.trace_writer import open_lane
from offpolicy.training.memory_sizes import peer_timeout_s, row_layout, save_s, transport_nbytes
from offpolicy.training.resources import has_evaluator, lane_names, settle_evaluator, thread_budget
from offpolicy.training.run_memory import RunMemory
from offpolicy.training.worker_spec import WorkerSpec
from offpolicy.types import SpaceSpec

STOP_TIMEOUT_S = 30.0


def launch(cfg: RunConfig) -> int:
    """Train from the start, or go on where the run directory says; returns the exit code."""
    watch = Stopwatch()
    place = follow_launcher(cfg)
    spec = preflight(cfg)
    outset = plan_launch(cfg, place)
    cfg = outset.cfg
    teacher_step = find_teacher(outset, spec)
    shared = RunMemory(settle_evaluator(cfg, place), spec, place.num_hosts)
    with outset.claim() as run, signals_held(), _meeting_point(cfg, place) as meeting:
        if run.checkpoint is not None:
            saved = read_config(run.path)
            check_same(cfg, saved)
            check_fits(cfg, spec, run.checkpoint)
            cfg = replace(cfg, teacher=saved.teacher)  # whom it began with
        write_config(run.path, cfg, spec)
        cfg = settle_evaluator(cfg, place)
        trace_dir = trace.begin(cfg, run.path, lane_names(cfg))
        job = replace(
            _assignment(outset, run, spec, meeting),
            cfg=cfg,
            teacher_step=teacher_step,
            trace_dir=str(trace_dir) if trace_dir else None,
        )
        with _opened(run.path / "train.log") as log_fd, contextlib.closing(_open_logger(job, run)) as logger:
            try:
                code, failure = _supervise(
                    job, run, logger, shared, _host(cfg, spec, log_fd, watch, place.num_hosts), meeting
                )
            finally:  # when no process is left that could still write
                if trace_dir is not None:
                    _write_trace(trace_dir, run.path, logger)
    _last_words(failure)
    return code


@contextlib.contextmanager
def _meeting_point(cfg: RunConfig, place: HostInfo) -> Iterator[socket.socket | None]:
    """On one host: a loopback socket on a free port, for rank 0 to serve the ranks' store on."""
    if cfg.runner.name not in RANK_RUNNERS or not place.is_alone:
        yield None
        return
    with socket.create_server((LOOPBACK_HOST, 0)) as listener:
        yield listener


def _assignment(outset: LaunchPlan, run: RunDir, spec: SpaceSpec, meeting: socket.socket | None) -> WorkerSpec:
    return WorkerSpec(
        cfg=outset.cfg,
        spec=spec,
        run_dir=str(run.path.resolve()),
        start_step=outset.start_step or (run.checkpoint.env_steps if run.checkpoint else 0),
        checkpoint=run.checkpoint.env_steps if run.checkpoint else None,
        place=outset.place,
        store_port=meeting.getsockname()[1] if meeting else outset.place.store_port,
    )


def _host(cfg: RunConfig, spec: SpaceSpec, log_fd: int, watch: Stopwatch, num_hosts: int) -> SupervisorConfig:
    """The run's id marks every process of it in its environment; a caller may have chosen it."""
    run_id = os.environ.get("OFFPOLICY_RUN_ID") or uuid.uuid4().hex
    stop_timeout_s = STOP_TIMEOUT_S + save_s(cfg, spec)
    return SupervisorConfig(run_id, log_fd, stop_timeout_s, watch.elapsed_s, num_hosts, peer_timeout_s(cfg, spec))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor that appends to `path`: the children's stdout and stderr."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def _open_logger(job: WorkerSpec, run: RunDir) -> OffPolicyLogger:
    cfg = job.cfg
    work = work_of(cfg, job.spec, job.place.num_hosts)
    header = RunHeader(
        algo=cfg.algo.name,
        env_id=cfg.env.id,
        seed=cfg.seed,
        mode=cfg.collect_mode,
        total_timesteps=cfg.total_timesteps,
        device="" if cfg.device == "auto" else cfg.device,
        num_envs=cfg.env.num_envs,
        started_unix_s=unix_s(),
        runner=cfg.runner.name,
        flops_per_update=work.update,
        flops_per_decision=work.inference,
        ramps=cfg.algo.ramps,
        stage=cfg.algo.stage if cfg.algo.name == "hora" else "",
        world_size=job.place.num_hosts * cfg.runner.world_size,
        num_collectors=cfg.collect.num_collectors,
        num_hosts=job.place.num_hosts,
    )
    return open_logger(run.path, cfg, header, job.start_step or None)


def _supervise(
    job: WorkerSpec,
    run: RunDir,
    logger: OffPolicyLogger,
    shared: RunMemory,
    host: SupervisorConfig,
    meeting: socket.socket | None,
) -> tuple[int, Failure | None]:
    """Run the processes and write down how it ended; signals are heard until that is done."""
    _announce(logger, job, run)
    counters = open_lane(job.trace_dir, "supervisor", TRACED_LEVELS, "supervisor")
    monitor = Monitor(job.cfg, shared, logger, host.elapsed_s, job.place.num_hosts, counters)
    with Supervisor(shared.control, tuple(shared.wake_events.values()), host) as supervisor:
        outcome: Outcome = ("failed", 1, "the supervisor failed")
        try:
            _spawn(supervisor, job, shared.fds, {"store": meeting.fileno()} if meeting else {})
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


def learner_target(cfg: RunConfig) -> str:
    """The entry point of a learner: a runner is a module of this package with a `learner_main`."""
    return f"{__package__ or 'runners'}.{cfg.runner.name}:learner_main"


def collector_target() -> str:
    """The entry point of a collector, the same for every runner."""
    return f"{__package__ or 'runners'}.collector:main"


def evaluator_target() -> str:
    """The entry point of the evaluator, the same for every runner."""
    return f"{__package__ or 'runners'}.evaluator:main"


def _spawn(supervisor: Supervisor, job: WorkerSpec, fds: dict[str, int], store: dict[str, int]) -> None:
    payload = job.to_json()
    for rank in range(job.cfg.runner.world_size):
        supervisor.spawn("learner", rank, learner_target(job.cfg), payload, fds | (store if rank == 0 else {}))
    for index in range(job.cfg.collect.num_collectors):
        supervisor.spawn("collector", index, collector_target(), payload, fds)
    if has_evaluator(job.cfg):
        supervisor.spawn("evaluator", 0, evaluator_target(), payload, fds)


def _announce(logger: OffPolicyLogger, job: WorkerSpec, run: RunDir) -> None:
    """The run header: what was decided for the user."""
    cfg, spec, place = job.cfg, job.spec, job.place
    mib = transport_nbytes(cfg, spec) / 2**20
    threads, num_collectors = thread_budget(cfg), cfg.collect.num_collectors
    logger.message(f"run directory: {run.path}")
    if not place.is_alone:
        attempt = f", restart {place.attempt}" if place.attempt else ""
        logger.message(f"host {place.host} of {place.num_hosts}, launched by torchrun as {place.job}{attempt}")
    rings = f" in {num_collectors} rings, one per collector" if num_collectors > 1 else ""
    if cfg.algo.learns_from_rollouts:
        slots = f"{cfg.rollout.slots} of {cfg.rollout.length} steps x {cfg.env.num_envs} environments"
        logger.message(f"rollouts: {slots} = {mib:.1f} MiB of shared memory{rings}; {cfg.rollout.when_full} when full")
    else:
        rows, row_bytes = num_collectors * cfg.replay_rows, row_layout(spec).nbytes
        logger.message(f"replay: {rows:,} rows x {row_bytes} B = {mib:.1f} MiB of shared memory{rings}")
    logger.message(
        f"{cfg.runner.name}, {cfg.collect_mode}: threads learner {threads['learner']}, collector {threads['collector']}"
    )
    if has_evaluator(cfg):
        logger.message("evaluation: beside training, in a process with a thread of its own")
    num_ranks = place.num_hosts * cfg.runner.world_size
    if num_ranks > 1:
        how = "gradients" if cfg.runner.sync == "gradients" else f"parameters every {cfg.runner.sync_every} iterations"
        logger.message(f"{num_ranks} learner ranks average {how}: {_batch_shares(cfg, num_ranks)}")
    for problem in run.rejected:
        logger.message(f"warning: {problem}")
    if job.start_step:
        logger.message(f"resuming at env step {job.start_step:,}")
    elif job.teacher_step is not None:
        logger.message(f"teacher: {cfg.teacher}, env step {job.teacher_step:,}")
        for difference in env_differences(read_config(Path(cfg.teacher or "")).env, cfg.env):
            logger.message(f"warning: the teacher's environment was another one: {difference}")
    if os.uname().machine not in ("x86_64", "AMD64"):
        logger.message("warning: the shared-memory protocol is proven on x86-64 only")


def _batch_shares(cfg: RunConfig, num_ranks: int) -> str:
    if cfg.algo.learns_from_rollouts:
        return f"{cfg.collect.num_collectors // cfg.runner.world_size} collectors per rank"
    return f"batch {cfg.algo.batch_size // num_ranks} per rank, {cfg.algo.batch_size} together"


Outcome = tuple[str, int, str]  # status, exit code, reason


def _outcome(supervisor: Supervisor, monitor: Monitor) -> Outcome:
    failure = supervisor.failure
    if monitor.is_complete and failure is None:
        return "completed", EXIT_OK, f"{monitor.snapshot().env_steps:,} env steps done"
    saved = f"checkpoint saved at env step {monitor.saved_steps[-1]:,}" if monitor.saved_steps else "nothing saved"
    if supervisor.signal_code and (failure is None or failure.exit_code == 1):
        return "interrupted", supervisor.signal_code, f"stopped by a signal; {saved}"
    if failure is not None:
        return "failed", failure.exit_code, f"{failure.role} {failure.index}: {failure.cause}"
    if monitor.stopped_by is not None:
        return "interrupted", EXIT_TERMINATED, f"the host of rank {monitor.stopped_by} asked to stop; {saved}"
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
        num_hosts=monitor.num_hosts,
        config_mapping=logger.config_mapping,
    )
    try:
        write_summary(path / "summary.json", summary)
    except OSError as error:
        logger.message(f"summary.json not written: {error}")
        return False
    finally:
        logger.finish(summary)
    return True


def _write_trace(trace_dir: Path, run_dir: Path, logger: OffPolicyLogger) -> None:
    """`trace.json`; where it cannot be written now, `offpolicy trace` can make it later."""
    logger.message(f"writing {run_dir / trace.TRACE_JSON}")
    try:
        shrink_lanes(trace_dir)
        trace.write_json(trace_dir, run_dir)
    except (OSError, ConfigError) as error:
        logger.message(f"{trace.TRACE_JSON} not written: {error}; offpolicy trace {run_dir} makes it from {trace_dir}")


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
