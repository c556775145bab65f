"""`offpolicy train` and `offpolicy resume`: from a checked configuration to an exit code, on one host."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from offpolicy import fault
from offpolicy.analysis.chrome_trace import TRACE_JSON, export_trace
from offpolicy.analysis.trace_reader import shrink_tracks
from offpolicy.checkpoint import Checkpoint, SharedState, run_store
from offpolicy.commands.train import run_server
from offpolicy.config.parsing import flatten, is_within, merge
from offpolicy.config.run_files import read_config, write_config
from offpolicy.config.schema import RESUMABLE, RunConfig, plugins_of
from offpolicy.config.sections import RANK_RUNNERS
from offpolicy.distributed.host_info import LOOPBACK_HOST, HostInfo
from offpolicy.errors import EXIT_OK, CheckpointError, ConfigError, CrashLoopError, SaveError, StartError
from offpolicy.launch.hosts import LaunchPlan, follow_launcher, own_config, plan_launch
from offpolicy.launch.monitor import Monitor
from offpolicy.launch.outcome import (
    Outcome,
    already_complete,
    conclude,
    failure_of,
    is_complete,
    outcome_of,
    print_failure,
)
from offpolicy.launch.preflight import (
    check_fits,
    check_restart,
    check_same,
    check_spaces,
    find_origin,
    preflight,
    with_process,
)
from offpolicy.launch.resources import plan_host, spin_rounds, track_names
from offpolicy.launch.run_dir import RunDir
from offpolicy.launch.run_header import announce, open_run_logger, unread_warning
from offpolicy.launch.train_log import open_train_log, trim_train_log
from offpolicy.logger.callbacks import Callback, Callbacks, load_callback
from offpolicy.logger.console import shown_path
from offpolicy.logger.logger import OffPolicyLogger
from offpolicy.logger.provenance import Provenance
from offpolicy.logger.summary import RunStatus
from offpolicy.processes.deaths import Restarts
from offpolicy.processes.fork_server import ForkServer
from offpolicy.processes.signals import SignalKeeper, drop_save_requests, interrupts_exit, signals_blocked, signals_kept
from offpolicy.processes.supervisor import TICK_S, Failure, Supervisor, SupervisorConfig
from offpolicy.runs import mark_latest
from offpolicy.timing.clock import Stopwatch, unix_s
from offpolicy.timing.core_ledger import open_core_ledger
from offpolicy.timing.trace_writer import begin_trace
from offpolicy.training.run_memory import RunMemory, peer_timeout_s, save_s
from offpolicy.training.worker import WorkerSpec
from offpolicy.types import SpaceSpec

STOP_TIMEOUT_S = 30.0  # seconds from a stop request until the processes are killed, besides the time to save


def resume(
    run: Path, overrides: Mapping[str, Any], server: ForkServer | None = None, *, ends_process: bool = False
) -> int:
    """Continues the run in directory `run`; `overrides` may change what `RESUMABLE` lists. The rest as `train`."""
    refused = [key for key in flatten(overrides) if not is_within(key, RESUMABLE)]
    if refused:
        allowed = ", ".join(RESUMABLE)
        raise ConfigError([f"{key}: cannot change when a run is resumed; allowed {allowed}" for key in refused])
    if HostInfo.of_launcher().job:
        raise ConfigError("resume: under torchrun write `offpolicy train run_dir=...` with the command of the start")
    newest = run_store(run).newest_valid(reads_rows=False) if "total_timesteps" in overrides else None
    wanted = overrides.get("total_timesteps")
    if newest is not None and isinstance(wanted, int | float) and wanted < newest.env_steps:  # 5e4 is a float here
        raise ConfigError(
            f"total_timesteps: got {wanted:.0f}, allowed at least {newest.env_steps}, the env steps that"
            f" {shown_path(run)} has done; write total_timesteps={2 * newest.env_steps}"
        )
    saved = merge(read_config(run).to_mapping(), overrides)
    cfg = RunConfig.from_mapping(merge(saved, {"run_dir": str(run), "resume": "must"}))
    return train(cfg, server, ends_process=ends_process)


class Ended(NamedTuple):
    """How a run has ended."""

    code: int  # exit code
    path: Path  # run directory
    failure: Failure | None


def train(cfg: RunConfig, server: ForkServer | None = None, *, ends_process: bool = False) -> int:
    """Trains as `train_run`, writes the failure, if there is one, to stderr, and returns the exit code."""
    ended = train_run(cfg, server=server, ends_process=ends_process)
    print_failure(ended.failure, ended.path)
    return ended.code


@dataclass(frozen=True, slots=True)
class Parts:
    """What stays where the processes of a run begin again."""

    run: RunDir
    memory: RunMemory
    server: ForkServer
    log_fd: int  # of train.log
    listener: socket.socket | None  # of the ranks' store
    provenance: Provenance
    callbacks: Callbacks
    restarts: Restarts
    signals: SignalKeeper


def train_run(
    cfg: RunConfig, callbacks: Sequence[Callback] = (), server: ForkServer | None = None, *, ends_process: bool = False
) -> Ended:
    """Trains from the start, or continues the run of the run directory.

    `callbacks` are called beside those that the configuration names. `server` is the fork server of this run, where it
    was started already.
    `ends_process`: the caller exits then. From the end of the run on its signals are ignored, so that none of them
    changes the code; otherwise the caller's handlers come back.
    """
    watch = Stopwatch()
    fault.arm("supervisor")
    drop_save_requests()
    with contextlib.ExitStack() as opened:
        with interrupts_exit():  # nothing is made yet that would stay
            host = follow_launcher(cfg)
            own_cfg = own_config(cfg, host)
            rounds = spin_rounds(own_cfg, host)
            if server is not None and server.spin_rounds != rounds:  # its OpenMP threads must spin otherwise
                server.close()
                server = None
            server = server or opened.enter_context(run_server(rounds))
            server.timeout_s = cfg.runner.start_timeout_s
            spec, vectorization, env_device = preflight(own_cfg, server)
            if own_cfg.env.vectorization == "auto":
                cfg = replace(cfg, env=replace(cfg.env, vectorization=vectorization))
            if own_cfg.collect.process == "auto":
                cfg = with_process(cfg, env_device)
            plan = plan_launch(cfg, host)
            host = plan.host  # with what the hosts have agreed on
            plan, origin_step = find_origin(plan, spec)
            host_plan = plan_host(plan.cfg, host)
            check_restart(plan.cfg)
            called = (*map(load_callback, cfg.callbacks), *callbacks) if host.index == 0 else ()
            memory = RunMemory(
                plan.cfg,
                spec,
                host.num_hosts,
                has_evaluator=host_plan.has_evaluator,
                collects_tensors=plan.cfg.collects_in_learner and env_device is not None,
            )
        with (
            contextlib.closing(memory),
            interrupts_exit(),  # by a stop during the claim, which has left the run directory as it was
            signals_kept(ends_process=ends_process) as kept,
            plan.claim(kept.stops_raise if host.is_alone else contextlib.nullcontext) as run,
            signals_blocked(),
        ):
            if host.is_alone and run.checkpoint is not None and is_complete(run, plan.cfg):
                check_same(plan.cfg, read_config(run.path))
                kept.drop()
                sys.stdout.write(already_complete(run.path, run.checkpoint.env_steps, plan.cfg) + "\n")
                return Ended(EXIT_OK, run.path, None)
            cfg = run_config(plan, run, spec)
            provenance = Provenance.of_this_process(unix_s())
            provenance.note(run.path / "config.yaml", plugins_of(cfg))
            if host.index == 0:
                mark_latest(run.path)
            listener: socket.socket | None = None  # on which rank 0 serves the ranks' store, with one host
            if cfg.runner.name in RANK_RUNNERS and host.is_alone:
                listener = opened.enter_context(socket.create_server((LOOPBACK_HOST, 0)))
            job = WorkerSpec(
                cfg=cfg,
                spec=spec,
                plan=host_plan,
                host=host,
                run_dir=str(run.path.resolve()),
                start_step=plan.start_step or 0,
                checkpoint=None,
                store_port=listener.getsockname()[1] if listener else host.store_port,
                origin_step=origin_step,
                env_device=env_device,
            )
            if cfg.starts_ray:  # below the system's directory: a socket's path may have 107 characters, Ray's are long
                job = replace(job, ray_dir=opened.enter_context(tempfile.TemporaryDirectory(prefix="offpolicy-")))
            if run.checkpoint is not None:
                job = _from_checkpoint(job, run.checkpoint)
            with open_train_log(run.path / "train.log") as log_fd, contextlib.closing(Callbacks(called)) as own:
                for warning in unread_warning(cfg):
                    os.write(log_fd, f"warning: {warning}\n".encode())
                # A launcher that has started all hosts begins them again together.
                restarts = Restarts(0 if host.job else cfg.runner.max_restarts, watch.elapsed_s)
                parts = Parts(run, memory, server, log_fd, listener, provenance, own, restarts, kept)
                try:
                    code, failure = _run(job, parts, watch)
                finally:
                    kept.drop()  # the run has its outcome
                _keep_ray_logs(job, failure)
        return Ended(code, run.path, failure)


def _keep_ray_logs(job: WorkerSpec, failure: Failure | None) -> None:
    """Copies what the run's own Ray cluster has logged, if there is one, into the run directory after a failure."""
    if failure is None or job.ray_dir is None:
        return
    with contextlib.suppress(OSError):
        shutil.copytree(f"{job.ray_dir}/ray/session_latest/logs", f"{job.run_dir}/ray", dirs_exist_ok=True)


def _run(job: WorkerSpec, parts: Parts, watch: Stopwatch) -> tuple[int, Failure | None]:
    """Runs the processes to their end: again, from the checkpoint, after a death that the run survives."""
    while True:
        if job.cfg.timing.trace and job.cfg.timing.enabled:
            names = track_names(job.cfg, has_evaluator=job.plan.has_evaluator)
            job = replace(job, trace_dir=str(begin_trace(Path(job.run_dir), names, job.cfg.timing.trace_mb)))
        with contextlib.closing(open_run_logger(job, parts.run, parts.provenance)) as logger:
            announce(logger, job, parts.run)
            try:
                ended = _supervise(job, parts, logger, watch.elapsed_s)
            finally:  # when no process is left that could still write
                if job.trace_dir is not None:
                    _write_trace(Path(job.trace_dir), parts.run.path, logger)
        if not isinstance(ended, WorkerSpec):
            return ended
        job, watch = ended, Stopwatch()  # the records begin again as after a resume


def _begin_again(job: WorkerSpec, parts: Parts) -> WorkerSpec:
    """Returns what all processes are given when they begin again, from the newest checkpoint and with unused memory.

    Raises `CheckpointError` where none of the checkpoints can be used, `StartError` where memory is short.
    """
    parts.run.go_back()
    try:
        parts.memory.clear()
    except OSError as error:
        raise StartError(f"the processes cannot begin again: {error}") from error
    job = replace(job, start_step=0, checkpoint=None, last_eval_step=0, restarts=parts.restarts.total)
    return job if parts.run.checkpoint is None else _from_checkpoint(job, parts.run.checkpoint)


def _from_checkpoint(job: WorkerSpec, checkpoint: Checkpoint) -> WorkerSpec:
    """Returns the job that continues from a checkpoint of this host."""
    steps, state = checkpoint.env_steps, checkpoint.read(SharedState, "state")
    return replace(job, start_step=steps, checkpoint=steps, last_eval_step=state.last_eval_step)


def run_config(plan: LaunchPlan, run: RunDir, spec: SpaceSpec) -> RunConfig:
    """Writes and returns the configuration of the claimed run. Raises `ConfigError` if it cannot continue this way."""
    cfg = replace(plan.cfg, run_dir=str(run.path))
    if run.checkpoint is not None:
        saved = read_config(run.path)
        check_same(cfg, saved)
        check_fits(cfg, spec, run.checkpoint)
        check_spaces(run.path, spec)
        cfg = replace(cfg, teacher=saved.teacher)  # the one that the run started from
    run.begin()
    write_config(run.path, cfg, spec)
    return cfg


def _supervise(
    job: WorkerSpec, parts: Parts, logger: OffPolicyLogger, elapsed_s: Callable[[], float]
) -> tuple[int, Failure | None] | WorkerSpec:
    """Runs the processes and writes the summary; signals are handled until it is written.

    Returns exit code and failure; after a death that the run survives, what all processes are given that begin again.
    """
    cfg, host, memory = job.cfg, job.host, parts.memory
    cores = open_core_ledger(is_enabled=cfg.timing.enabled)
    monitor = Monitor(job, memory, logger, elapsed_s, parts.callbacks, cores)
    limits = SupervisorConfig(
        parts.server,
        parts.signals,
        parts.log_fd,
        STOP_TIMEOUT_S + save_s(cfg, job.spec),
        cfg.env.step_timeout_s,
        elapsed_s,
        parts.restarts,
        death_code=CrashLoopError.exit_code if host.job else 1,
        num_hosts=host.num_hosts,
        peer_timeout_s=peer_timeout_s(cfg, job.spec),
        start_timeout_s=cfg.runner.start_timeout_s,
        replay_s=save_s(cfg, job.spec) if job.start_step else 0.0,
    )
    with Supervisor(memory.control, tuple(memory.wake_events.values()), limits, monitor.on_message) as supervisor:
        outcome, failure = Outcome(RunStatus.FAILED, 1, "the supervisor failed"), None
        again: WorkerSpec | None = None
        try:
            logger.status("starting")
            for role, pid in _spawn(supervisor, job, parts, elapsed_s):
                if cores is not None:
                    cores.add(role, pid)

            def on_tick() -> None:
                monitor.on_tick()
                trim_train_log(parts.log_fd)

            supervisor.run(on_tick, monitor.on_signal)
            if supervisor.must_begin_again:
                again = _begin_again(job, parts)
            else:
                outcome, failure = outcome_of(supervisor, monitor, cfg.total_timesteps), supervisor.failure
                monitor.log_rest()
        except (StartError, CheckpointError) as error:
            failure = failure_of(memory.control.env_steps, error.exit_code, str(error))
            outcome = Outcome(RunStatus.FAILED, failure.exit_code, failure.cause)
        except BaseException as error:
            outcome = Outcome(RunStatus.FAILED, getattr(error, "exit_code", 1), f"supervisor: {error!r}")
            raise
        finally:
            refusal = None if again else conclude(parts.run.path, monitor, logger, outcome, parts.provenance)
    if again is not None:
        return again
    if refusal is not None and outcome.exit_code == EXIT_OK:
        cause = f"summary.json was not written: {refusal}"
        failure = failure_of(memory.control.env_steps, SaveError.exit_code, cause)
        return failure.exit_code, failure
    return outcome.exit_code, failure


def _spawn(
    supervisor: Supervisor, job: WorkerSpec, parts: Parts, elapsed_s: Callable[[], float]
) -> list[tuple[str, int]]:
    """Starts the learner ranks, the collectors and, where there is one, the evaluator; returns roles and pids.

    First it waits until processes can be forked at once, for `start_timeout_s` at most. On one host it starts none once
    a stop has come: nothing is there that could be saved.
    """
    cfg, end_s = job.cfg, elapsed_s() + job.cfg.runner.start_timeout_s
    while not parts.server.is_ready(TICK_S) and elapsed_s() < end_s:
        if job.host.is_alone and supervisor.take_signals():
            break
    if job.host.is_alone and supervisor.take_signals():
        return []
    payload, fds = job.to_json(), parts.memory.fds
    names = [("learner", rank) for rank in range(cfg.runner.world_size)]
    names += [("collector", index) for index in range(cfg.num_local_collectors)]
    names += [("link", 0)] if cfg.collect.remote_hosts else []
    names += [("evaluator", 0)] if job.plan.has_evaluator else []
    pids = []
    for role, index in names:
        is_first = (role, index) == ("learner", 0)
        own = fds | ({"store": parts.listener.fileno()} if parts.listener is not None and is_first else {})
        pid = supervisor.spawn(role, index, entry_point(role, cfg), payload, own)
        pids.append(("collector" if role == "link" else role, pid))  # by whose cores they are counted
    return pids


def entry_point(role: str, cfg: RunConfig) -> str:
    """Returns the main function of a process, `module:function`: the supervisor must not import it, it needs torch.

    A learner's is in the file of its topology; the package is `offpolicy.runners` where the wheel is installed.
    """
    package = __package__ or "runners"
    return f"{package}.{cfg.runner.name}:learner_main" if role == "learner" else f"{package}.{role}:main"


def _write_trace(trace_dir: Path, run_dir: Path, logger: OffPolicyLogger) -> None:
    """Writes `trace.json`; where it cannot be written now, `offpolicy trace` can make it later."""
    logger.view.message(f"writing {run_dir / TRACE_JSON}")
    try:
        shrink_tracks(trace_dir)
        export_trace(trace_dir, run_dir)
    except (OSError, ConfigError) as error:
        command = f"offpolicy trace {shown_path(run_dir)}"
        logger.view.message(f"{TRACE_JSON} not written: {error}; {command} makes it from {trace_dir}")
