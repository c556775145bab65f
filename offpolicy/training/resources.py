"""CPU threads of each process, the place of the evaluator, and the lanes of a trace."""

from __future__ import annotations

import os
from dataclasses import replace

from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo

NEEDED_THREADS = 8  # of a learner: one less of more than these is less than a whole core for evaluations
NVIDIA_DRIVER = "/dev/nvidiactl"  # there where a GPU is; asking torch would cost the supervisor a second


def lane_names(cfg: RunConfig) -> list[str]:
    """The threads of this host that a trace has a lane for."""
    ranks, collectors = range(cfg.runner.world_size), range(cfg.collect.num_collectors)
    kinds, has_device = ["learner"], cfg.device != "cpu" and os.path.exists(NVIDIA_DRIVER)
    may_pack = has_device or cfg.runner.name == "double_buffer"  # where replay.source is auto
    if not cfg.algo.learns_from_rollouts and {"prefetch": True, "auto": may_pack}.get(cfg.replay.source, False):
        kinds.append("packer")
    if has_device:
        kinds += ["device", "device_copies"]
    names = [*(f"{kind}-{i}" for kind in kinds for i in ranks), *(f"collector-{i}" for i in collectors)]
    beside = ["evaluator-0", *(["hook-0"] if cfg.eval.hook else [])]
    return names + (beside if has_evaluator(cfg) else [])


def settle_evaluator(cfg: RunConfig, place: HostInfo) -> RunConfig:
    """`eval.beside` as true or false, for this host: only the first one evaluates.

    `auto` takes a core that nobody else needs (`num_spare_cores`). At the end alone there is nothing to be beside of.
    """
    is_free = cfg.eval.every > 0 and num_spare_cores(cfg) > 0
    is_beside = cfg.eval.beside == "true" or (cfg.eval.beside == "auto" and is_free)
    is_here = is_beside and place.host == 0 and cfg.eval.episodes > 0
    return replace(cfg, eval=replace(cfg.eval, beside=str(is_here).lower()))


def num_spare_cores(cfg: RunConfig) -> int:
    """Cores at hand beyond those of this host's collectors, their environments' processes and its learner ranks.

    A rank's are as many as its threads without an evaluator; of those it has by default, no more than `NEEDED_THREADS`.
    """
    workers = cfg.env.num_envs if cfg.env.vectorization == "async" else 0
    collectors = cfg.collect.num_collectors * ((cfg.threads.collector or 1) + workers)
    alone = replace(cfg, eval=replace(cfg.eval, beside="false"))
    threads = cfg.threads.learner or min(thread_budget(alone)["learner"], NEEDED_THREADS)
    return len(os.sched_getaffinity(0)) - collectors - cfg.runner.world_size * threads


def has_evaluator(cfg: RunConfig) -> bool:
    """Whether this host has a process that evaluates, once `settle_evaluator` has said so."""
    return cfg.eval.beside == "true"


def thread_budget(cfg: RunConfig) -> dict[str, int]:
    """CPU threads of each process: one per collector, the rest for the learner ranks; configuration overrides.

    In `alternate` mode the collector stands still while the learner trains, so the learner has all the cores but the
    one of an evaluator.
    """
    cores = len(os.sched_getaffinity(0))
    collector = cfg.threads.collector or 1
    busy = 0 if cfg.collect_mode == "alternate" else collector * cfg.collect.num_collectors
    spare = max((cores - busy - has_evaluator(cfg)) // cfg.runner.world_size, 1)
    return {"collector": collector, "learner": cfg.threads.learner or spare}
