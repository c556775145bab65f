"""From a checked configuration to an exit code: preflight, directory, memory, processes, summary."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import uuid
from dataclasses import asdict
from pathlib import Path

import yaml

from offpolicy.config import RunConfig
from offpolicy.envs.probe import check_id, probe
from offpolicy.errors import EXIT_OK, ConfigError
from offpolicy.ipc.supervisor import Failure, Host, Supervisor
from offpolicy.logger.logger import OffPolicyLogger, open_logger
from offpolicy.logger.record import RunHeader
from offpolicy.logger.wandb_sink import require_login
from offpolicy.logger.summary import build_summary, write_summary
from offpolicy.rundir import RunDir, default_run_dir
from offpolicy.timing.clock import Stopwatch, unix_s, wall_clock_stamp
from offpolicy.types import SpaceSpec

from . import wiring
from .monitor import Monitor

LEARNERS = {"single_gpu": "single_gpu"}  # runner name -> module of this package that holds `learner_main`


def preflight(cfg: RunConfig) -> SpaceSpec:
    """Everything that can be refused before a directory or a training process exists."""
    check_id(cfg.env.id)
    if cfg.log.wandb == "online":
        require_login()
    spec = probe(cfg.env)
    wiring.check_memory(wiring.replay_nbytes(cfg, spec))
    return spec


def launch(cfg: RunConfig) -> int:
    """Train from the start, or go on where the run directory says; returns the exit code."""
    watch = Stopwatch()
    spec = preflight(cfg)
    path = Path(cfg.run_dir) if cfg.run_dir else default_run_dir(
        Path("runs"), cfg.algo.name, cfg.env.id, wall_clock_stamp(), cfg.seed
    )
    with RunDir.claim(path, cfg.resume) as run:
        if run.checkpoint is not None:
            check_fits(cfg, spec, run)
        write_config(run.path, cfg, spec)
        return _supervised(cfg, spec, run, watch)


def check_fits(cfg: RunConfig, spec: SpaceSpec, run: RunDir) -> None:
    """Refuse to continue a checkpoint of another shape, naming every difference."""
    assert run.checkpoint is not None
    saved = run.checkpoint.json("state")["fingerprint"]
    now = wiring.fingerprint(cfg, spec)
    differences = [
        f"{key}: the checkpoint {run.checkpoint.path} has {saved.get(key)}, this configuration {value}"
        for key, value in now.items()
        if saved.get(key) != value
    ]
    if differences:
        raise ConfigError(differences)


def write_config(path: Path, cfg: RunConfig, spec: SpaceSpec) -> None:
    """`config.yaml`, the resolved configuration, and `spaces.json`, what the environment said of itself."""
    (path / "config.yaml").write_text(yaml.safe_dump(cfg.to_mapping(), sort_keys=False))
    (path / "spaces.json").write_text(json.dumps(asdict(spec)))


def read_config(path: Path) -> RunConfig:
    """The configuration of a run directory."""
    try:
        return RunConfig.from_mapping(yaml.safe_load((path / "config.yaml").read_text()))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path / 'config.yaml'}: cannot be read: {error}") from None


def read_spec(path: Path) -> SpaceSpec:
    """The spaces of a run directory."""
    return wiring.spec_from_json(json.loads((path / "spaces.json").read_text()))


def _supervised(cfg: RunConfig, spec: SpaceSpec, run: RunDir, watch: Stopwatch) -> int:
    """Run the processes and account for how it ended, whatever happens."""
    log_fd = os.open(run.path / "train.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    resume_step = run.checkpoint.env_steps if run.checkpoint else None
    header = RunHeader(
        algo=cfg.algo.name, env_id=cfg.env.id, seed=cfg.seed, mode=cfg.collect_mode,
        total_timesteps=cfg.total_timesteps, num_envs=cfg.env.num_envs, started_unix_s=unix_s(),
    )  # fmt: skip
    logger = open_logger(run.path, cfg, header, resume_step)
    try:
        shared = wiring.SharedMemory(cfg, spec)
        _announce(logger, cfg, spec, run)
        monitor = Monitor(cfg, shared, logger, watch)
        host = Host(os.environ.get("OFFPOLICY_RUN_ID") or uuid.uuid4().hex, log_fd, watch.elapsed_s)
        supervisor = Supervisor(shared.control, tuple(shared.bells.values()), host)
        crash: BaseException | None = None
        try:
            with supervisor:
                job = wiring.Assignment(cfg, spec, str(run.path.resolve()), str(resume_step) if run.checkpoint else None)
                _spawn(supervisor, cfg, job, shared)
                supervisor.run(monitor.on_message, monitor.on_tick, cfg.env.step_timeout_s)
        except BaseException as error:
            crash = error
            raise
        finally:
            code = _conclude(run.path, supervisor, monitor, logger, cfg, crash)
    finally:
        logger.close()
        os.close(log_fd)
    _last_words(supervisor.failure)
    return code


def _spawn(supervisor: Supervisor, cfg: RunConfig, job: wiring.Assignment, shared: wiring.SharedMemory) -> None:
    package = __package__ or "runners"
    payload = job.to_json()
    supervisor.spawn("learner", 0, f"{package}.{LEARNERS[cfg.runner.name]}:learner_main", payload, shared.fds)
    supervisor.spawn("collector", 0, f"{package}.collector:main", payload, shared.fds)


def _announce(logger: OffPolicyLogger, cfg: RunConfig, spec: SpaceSpec, run: RunDir) -> None:
    """The run header: what was decided for the user."""
    rows, width = cfg.replay_rows, wiring.row_layout(spec).width
    mib = wiring.replay_nbytes(cfg, spec) / 2**20
    logger.message(f"run directory: {run.path}")
    logger.message(f"replay: {rows:,} rows x {4 * width} B = {mib:.1f} MiB of shared memory")
    threads = wiring.thread_budget(cfg)
    logger.message(
        f"{cfg.runner.name}, {cfg.collect_mode}: threads learner {threads['learner']}, collector {threads['collector']}"
    )
    for problem in run.rejected:
        logger.message(f"warning: {problem}")
    if run.checkpoint is not None:
        logger.message(f"resuming at env step {run.checkpoint.env_steps:,} from {run.checkpoint.path.name}")
    if os.uname().machine not in ("x86_64", "AMD64"):
        logger.message("warning: the shared-memory protocol is proven on x86-64 only")


def _conclude(
    path: Path,
    supervisor: Supervisor,
    monitor: Monitor,
    logger: OffPolicyLogger,
    cfg: RunConfig,
    crash: BaseException | None,
) -> int:
    """Write the last record and `summary.json`; returns the exit code."""
    status, code, reason = _outcome(supervisor, monitor, crash)
    monitor.drain_episodes()
    snapshot = monitor.snapshot()
    summary = build_summary(
        snapshot,
        status=status,
        exit_code=code,
        reason=reason,
        last_eval=monitor.last_eval,
        mode=cfg.collect_mode,
        baseline=logger.baseline,
    )
    if snapshot.learners and not monitor.has_logged(snapshot):
        logger.log_interval(snapshot)
    write_summary(path / "summary.json", summary)
    logger.finish(summary)
    return code


def _outcome(supervisor: Supervisor, monitor: Monitor, crash: BaseException | None) -> tuple[str, int, str]:
    failure = supervisor.failure
    if crash is not None:
        return "failed", getattr(crash, "exit_code", 1), f"supervisor: {crash!r}"
    if supervisor.signal_code and (failure is None or failure.exit_code == 1):
        saved = monitor.saved_steps[-1] if monitor.saved_steps else None
        where = f"; checkpoint saved at env step {saved:,}" if saved is not None else "; no checkpoint was saved"
        return "interrupted", supervisor.signal_code, f"signal received{where}"
    if failure is not None:
        return "failed", failure.exit_code, f"{failure.role} {failure.index}: {failure.cause}"
    if not monitor.is_complete:
        return "failed", 1, "the learner left before the budget was spent"
    return "completed", EXIT_OK, f"{monitor.snapshot().env_steps:,} env steps done"


def _last_words(failure: Failure | None) -> None:
    """The last block on stderr: the guilty process and its traceback."""
    if failure is None:
        return
    cause = failure.cause.splitlines()[0]  # the traceback above ends with all of it
    head = f"offpolicy: {failure.role} {failure.index} (pid {failure.pid}) failed: {cause}"
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"{failure.traceback}{head}\n")
        sys.stderr.flush()
