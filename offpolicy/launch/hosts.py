"""One host or several: the launcher's environment, the start that the hosts agree on, and this host's directory."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from offpolicy.checkpoint import CHECKPOINTS, run_store
from offpolicy.config.parsing import flatten
from offpolicy.config.run_files import read_config
from offpolicy.config.schema import RunConfig, first_update_step, rank_problems
from offpolicy.config.sections import RANK_RUNNERS
from offpolicy.distributed.host_info import HostInfo, require_interface
from offpolicy.distributed.rendezvous import Proposal, agree
from offpolicy.envs.vectorization import resolve_vectorization
from offpolicy.errors import ConfigError, RunDirBusyError
from offpolicy.launch.run_dir import (
    RunDir,
    TakenError,
    WhileReading,
    default_run_dir,
    next_free,
    other_hosts,
    refuse_file,
)
from offpolicy.launch.run_lock import has_same_parent
from offpolicy.processes.child import die_with_parent
from offpolicy.timing.clock import wall_clock_stamp

# Configuration keys that may differ between the hosts of a run.
LOCAL_KEYS = ("run_dir", "resume", "runner.interface", "log.panel", "threads.collector", "threads.learner")


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The start of a run on this host: its configuration with the run directory filled in, and the common step."""

    cfg: RunConfig
    host: HostInfo
    start_step: int  # env step of the common checkpoint of several hosts; 0: none, or one host
    is_named: bool = True  # False where the run directory has its default name

    def claim(self, while_reading: WhileReading = contextlib.nullcontext) -> RunDir:
        """Locks this host's run directory and finds the checkpoint to resume from.

        A default name is taken by the first of the runs that begin in the same second; the others take
        the next ones. `while_reading` as for `RunDir.claim`.
        """
        path = Path(self.cfg.run_dir or ".")
        if self.is_named or self.cfg.resume == "must":
            refuse_file(path)
            # The launcher has restarted this process, and nothing was saved before, or by other hosts only.
            is_restart = bool(self.host.job) and not self.start_step and has_same_parent(path)
            if is_restart and self.host.is_alone:
                is_restart = run_store(path).newest_valid(reads_rows=False) is None
            resume = "auto" if self.start_step else self.cfg.resume  # the hosts have agreed to resume
            return RunDir.claim(path, resume, at=self.start_step, is_restart=is_restart, while_reading=while_reading)
        while True:
            with contextlib.suppress(RunDirBusyError, TakenError):
                return RunDir.claim(next_free(path), "never", while_reading=while_reading)


def follow_launcher(cfg: RunConfig) -> HostInfo:
    """Returns index and addresses of this host; under `torchrun`, this process dies with it. Raises `ConfigError`."""
    host = HostInfo.of_launcher()
    if host.job:
        die_with_parent(os.getppid())
        check_launched(cfg, host)
    num_ranks = host.num_hosts * cfg.runner.world_size
    if not cfg.algo.learns_from_rollouts and cfg.algo.batch_size % num_ranks:
        raise ConfigError(
            f"algo.batch_size: got {cfg.algo.batch_size}, allowed a multiple of the {num_ranks} learner ranks of all"
            " hosts: each takes an equal part of the batch"
        )
    if (first := first_update_step(cfg, host.num_hosts)) > cfg.total_timesteps:
        raise ConfigError(
            f"total_timesteps: got {cfg.total_timesteps}, allowed at least {first}, the env step of the first update"
            f" of {host.num_hosts} hosts: collect.num_collectors={cfg.collect.num_collectors} and"
            f" env.num_envs={cfg.env.num_envs} are those of each host"
        )
    if problems := list(rank_problems(cfg, num_ranks)):
        raise ConfigError(problems)
    if cfg.runner.name in RANK_RUNNERS:
        require_interface(cfg.runner.interface, host)
    return host


def check_launched(cfg: RunConfig, host: HostInfo) -> None:
    """Refuses under `torchrun` what would not survive a restart or differ between hosts. Raises `ConfigError`."""
    problems = []
    if cfg.runner.name not in RANK_RUNNERS:
        problems.append(f"runner: got {cfg.runner.name}, allowed {' or '.join(RANK_RUNNERS)} under torchrun")
    if cfg.collect.remote_hosts:
        problems.append(f"collect.remote_hosts: got {cfg.collect.remote_hosts}, allowed 0 under torchrun")
    if cfg.run_dir is None:
        problems.append("run_dir: got null, allowed a directory under torchrun: a restart must find it again")
    if cfg.device == "auto" and not host.is_alone:
        problems.append("device: got auto, allowed cpu or cuda with several hosts: all must train on the same kind")
    if problems:
        raise ConfigError(problems)


def plan_launch(cfg: RunConfig, host: HostInfo) -> LaunchPlan:
    """Fills in the run directory; with other hosts, agrees on it and on the checkpoint to resume from."""
    run_dir = Path(cfg.run_dir or default_run_dir(Path("runs"), cfg.algo.name, cfg.env, wall_clock_stamp(), cfg.seed))
    if host.is_alone:
        own = replace(own_config(cfg, host), run_dir=str(run_dir))
        return LaunchPlan(own, host, 0, is_named=cfg.run_dir is not None)
    own_dir, parts = host_dir(run_dir, host.index), (run_dir, *other_hosts(run_dir))
    proposal = Proposal(
        config={key: value for key, value in flatten(cfg.to_mapping()).items() if key not in LOCAL_KEYS},
        run_dir=str(run_dir),
        steps=[checkpoint.env_steps for checkpoint in run_store(own_dir).usable()],
        found=sorted(str(step) for part in parts for step in part.glob(f"{CHECKPOINTS}/step-*")),
        is_restart=has_same_parent(own_dir),
    )
    agreed = agree(host, proposal, cfg.runner.timeout_s)
    own = own_config(replace(cfg, run_dir=agreed.run_dir), host)
    own = replace(own, run_dir=str(host_dir(Path(agreed.run_dir), host.index)))
    return LaunchPlan(own, replace(host, launch_id=agreed.launch_id), agreed.start_step)


def own_config(cfg: RunConfig, host: HostInfo) -> RunConfig:
    """Returns this host's configuration.

    `env.vectorization=auto` becomes what this host can do, which changes no number, or the vectorization of the run
    that goes on, if there is one in this host's part of `run_dir`. TensorBoard, W&B and the sinks of plug-ins stay with
    the first host: they would have the run several times.
    """
    own_dir = host_dir(Path(cfg.run_dir or "."), host.index)
    env = resolve_vectorization(cfg.env, may_import=False)
    if cfg.env.vectorization == "auto" and cfg.run_dir is not None and (own_dir / "config.yaml").is_file():
        with contextlib.suppress(ConfigError):  # what is wrong with that file is said where it has to be read
            before = resolve_vectorization(read_config(own_dir).env, may_import=False)
            env = replace(cfg.env, vectorization=before.vectorization)
    if host.index == 0:
        return replace(cfg, env=env)
    log = replace(cfg.log, tensorboard=False, wandb="disabled", sinks=())
    return replace(cfg, env=env, log=log, sinks={})


def host_dir(run_dir: Path, host: int) -> Path:
    """Returns the run directory itself for host 0, a part of it for each other host, which may have its own disk."""
    return run_dir / f"host-{host}" if host else run_dir
