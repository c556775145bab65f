"""The cores of a host: threads of each process, room for an evaluator process, and the tracks of a trace."""

from __future__ import annotations

from dataclasses import replace

from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.envs.vectorization import batch_cost, is_batch, is_batched_task
from offpolicy.machine import has_gpu, num_usable_cores
from offpolicy.processes.fork_server import LONG_SPIN_ROUNDS, SPIN_ROUNDS
from offpolicy.training.worker import HostPlan

NEEDED_THREADS = 8  # threads of a learner beyond which one thread less costs it less than an evaluation's core gains


def plan_host(cfg: RunConfig, host: HostInfo) -> HostPlan:
    """Returns what the processes of this host get. Only the first host evaluates.

    `eval.beside=auto` takes a core that no other process needs; an evaluation at the end alone has nothing to run
    beside.
    """
    is_free = cfg.eval.every > 0 and num_spare_cores(cfg) > 0
    is_beside = cfg.eval.beside == "true" or (cfg.eval.beside == "auto" and is_free)
    has_evaluator = is_beside and host.index == 0 and cfg.eval.episodes > 0
    learner = learner_threads(cfg, has_evaluator=has_evaluator)
    return HostPlan(has_evaluator, learner, collector_threads(cfg), env_threads(cfg, has_evaluator=has_evaluator))


def collector_threads(cfg: RunConfig) -> int:
    """Returns the CPU threads of one collector: those configured, or one."""
    return 1 if cfg.threads.collector == "auto" else cfg.threads.collector


def env_threads(cfg: RunConfig, *, has_evaluator: bool) -> int:
    """Returns the threads that step a batch of environments: those of the collector.

    Where they are not configured and the learner stands still while the collector works, an equal part of the cores,
    without that of an evaluator.
    """
    if not is_batch(cfg.env) or not cfg.takes_turns or cfg.threads.collector != "auto":
        return collector_threads(cfg)
    return max((num_usable_cores() - has_evaluator) // cfg.collect.num_collectors, 1)


def env_step_factors(cfg: RunConfig, *, has_evaluator: bool) -> dict[str, float]:
    """Returns the cost of an env step in each mode over that in the present one, where its threads are others."""
    if cfg.env.vectorization != "mujoco" or not is_batched_task(cfg.env):
        return {}
    now = batch_cost(env_threads(cfg, has_evaluator=has_evaluator), cfg.env.num_envs)
    costs = {}
    for mode in ("alternate", "overlap"):
        other = replace(cfg, collect=replace(cfg.collect, mode=mode))
        costs[mode] = batch_cost(env_threads(other, has_evaluator=has_evaluator), cfg.env.num_envs)
    return {mode: cost / now for mode, cost in costs.items() if cost != now}


def learner_threads(cfg: RunConfig, *, has_evaluator: bool) -> int:
    """Returns the CPU threads of one learner rank: those configured, or an equal part of the cores left to learners.

    A learner that is alone begins with this number and tries others (`training/tuning.py`). In `alternate` mode
    the collector stands still while the learner trains, so the learners have all cores but the one of an evaluator.
    """
    if cfg.threads.learner != "auto":
        return cfg.threads.learner
    busy = 0 if cfg.collect_mode == "alternate" else collector_threads(cfg) * cfg.num_local_collectors
    return max((num_usable_cores() - busy - has_evaluator) // cfg.runner.world_size, 1)


def num_spare_cores(cfg: RunConfig) -> int:
    """Returns the cores at hand beyond those of this host's collectors, environment processes and learner ranks.

    A rank needs as many as its threads without an evaluator; of those it has by default, at most `NEEDED_THREADS`.
    """
    threads = learner_threads(cfg, has_evaluator=False)
    threads = min(threads, NEEDED_THREADS) if cfg.threads.learner == "auto" else threads
    return num_usable_cores() - _num_collecting(cfg) - cfg.runner.world_size * threads


def _num_collecting(cfg: RunConfig) -> int:
    """Returns the threads of this host's collectors and the processes of their environments."""
    workers = cfg.env.num_envs if cfg.env.vectorization == "async" else 0
    if cfg.collects_in_learner:
        return workers
    return cfg.num_local_collectors * (collector_threads(cfg) + workers)


def may_use_gpu(cfg: RunConfig) -> bool:
    """True if learners use a GPU, or would if torch could."""
    return (cfg.device == "auto" and has_gpu()) or cfg.device.startswith("cuda")


def spin_rounds(cfg: RunConfig, host: HostInfo) -> int:
    """Returns for how many rounds the OpenMP threads of a run's processes wait for each other before they sleep.

    Many where the learner tries its numbers of threads (`make_tuner`) and collectors and processes of environments
    leave a core; else few. One thread has none to wait for.
    """
    if cfg.threads.learner == 1:
        return SPIN_ROUNDS if has_gpu() else LONG_SPIN_ROUNDS  # those of a server that was started before
    is_alone = cfg.runner.world_size == 1 and host.is_alone
    tries_threads = cfg.threads.learner == "auto" and is_alone and not may_use_gpu(cfg)
    leaves_core = _num_collecting(cfg) < num_usable_cores()
    return LONG_SPIN_ROUNDS if tries_threads and leaves_core else SPIN_ROUNDS


def track_names(cfg: RunConfig, *, has_evaluator: bool) -> list[str]:
    """Returns the threads of this host that a trace has a track for."""
    ranks, collectors = range(cfg.runner.world_size), range(cfg.num_local_collectors or cfg.collects_in_learner)
    kinds, has_device = ["learner"], may_use_gpu(cfg)
    may_pack = has_device or cfg.runner.name == "double_buffer"  # where replay.source is auto
    if not cfg.algo.learns_from_rollouts and {"prefetch": True, "auto": may_pack}.get(cfg.replay.source, False):
        kinds.append("packer")
    if has_device:
        kinds += ["device", "device_copies"]
    names = [*(f"{kind}-{i}" for kind in kinds for i in ranks), *(f"collector-{i}" for i in collectors)]
    if has_evaluator:
        names.append("evaluator-0")
    return names
