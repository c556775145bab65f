"""Parts that are late on purpose, in the processes that own them: one phase after the other, in the course of one run.

What is wrapped is the real part that a phase times, so the delay arises where a slow part of a user would. Set in the
environment:

    DELAY_PLAN   JSON: [[{}, 500], [{"learner.train": 25}, 90], ...]: who is late by how many milliseconds, and for how
                 many iterations of the learner; once per iteration of a learner, once per step of a collector, once per
                 batch of the packer, without using the CPU
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from itertools import accumulate
from types import ModuleType
from typing import Any

from offpolicy.processes.child import ChildContext
from offpolicy.processes.control_page import RankWord
from offpolicy.training.run_memory import control_page
from offpolicy.training.worker import WorkerSpec

Part = tuple[type | ModuleType, str]  # a class or a module, and the name of the function that is late


def learner_parts() -> dict[str, tuple[Part, ...]]:
    """Which part each phase of a learner times: one for every source of batches and every algorithm."""

    from offpolicy.algos.learner import Learner
    from offpolicy.distributed.process_group import ProcessGroup
    from offpolicy.distributed.world import World
    from offpolicy.processes.handshake import LearnerGate
    from offpolicy.replay.prefetch_source import PrefetchSource
    from offpolicy.replay.replay_source import RateLimitedSource, ReplaySource
    from offpolicy.replay.rollout_ring import RolloutRing
    from offpolicy.replay.rollout_source import RolloutSource
    from offpolicy.training.checkpointer import Checkpointer
    from offpolicy.training.evaluators import InlineEvaluator
    from offpolicy.training.reporter import Reporter, WeightPublisher

    return {
        "collector_wait": ((LearnerGate, "wait_until"),), "rank_barrier": ((World, "agree"),),
        "replay_sample": ((ReplaySource, "sample"), (PrefetchSource, "sample"), (RolloutRing, "take")),
        "h2d": ((RateLimitedSource, "to_device"), (RolloutSource, "to_device")), "train": ((Learner, "update"),),
        "param_sync": ((ProcessGroup, "sum"),), "weight_publish": ((WeightPublisher, "publish"),),
        "evaluation": ((InlineEvaluator, "evaluate"),), "checkpoint": ((Checkpointer, "_capture"),),
        "sync_coordination": ((LearnerGate, "grant_each"),), "log": ((Reporter, "_publish"),),
        "other": ((RateLimitedSource, "is_exhausted"),),
    }  # fmt: skip


def packer_parts() -> dict[str, tuple[Part, ...]]:
    """Which part each phase of the packing thread times."""
    from offpolicy.replay.sampler import Sampler

    return {"pack": ((Sampler, "fill"),)}


def collector_parts() -> dict[str, tuple[Part, ...]]:
    """Which part each phase of a collector times."""
    from offpolicy.collect import collector
    from offpolicy.collect.policy import CollectorPolicy
    from offpolicy.collect.replay_writer import ReplayWriter
    from offpolicy.collect.rollout_writer import RolloutWriter
    from offpolicy.envs.batch_adapter import BatchAdapter
    from offpolicy.envs.env_adapter import EnvAdapter
    from offpolicy.envs.worker_pool import Workers
    from offpolicy.training import collecting

    return {
        "handshake": ((collector.Collector, "announce"),), "snapshot": ((collecting, "take_snapshot"),),
        "weight_apply": ((CollectorPolicy, "refresh"),), "action_select": ((CollectorPolicy, "act"),),
        "env_step": ((EnvAdapter, "step"), (BatchAdapter, "step"), (Workers, "step")),
        "replay_write": ((ReplayWriter, "write"), (RolloutWriter, "write")),
        "other": ((collector.Collector, "must_report"),),
    }  # fmt: skip


class Plan:
    """The parts that are late, by iteration of the leading learner."""

    def __init__(self, context: ChildContext) -> None:
        stretches: list[tuple[dict[str, float], int]] = json.loads(os.environ["DELAY_PLAN"])
        self._delays_ms = [delays_ms for delays_ms, _ in stretches]
        self._ends = list(accumulate(length for _, length in stretches))
        self._control = control_page(context.block("control"), WorkerSpec.of(context).cfg)

    @property
    def iteration(self) -> int:
        """Iterations that the leading learner has done."""
        return self._control.leader[RankWord.ITERATIONS]

    def delay_ms(self, name: str, iteration: int) -> float:
        """Returns the delay of that part in that iteration."""
        stretches = zip(self._delays_ms, self._ends, strict=True)
        return next((delays_ms.get(name, 0.0) for delays_ms, end in stretches if iteration < end), 0.0)


def install(context: ChildContext) -> None:
    """Wraps the parts of this process."""
    if "DELAY_PLAN" not in os.environ:
        return
    plan = Plan(context)
    _take_a_core(context)
    if context.role == "collector":
        _make_late("collector", collector_parts(), plan, is_once=False)
        return
    _make_late(f"rank{context.index}" if context.index else "learner", learner_parts(), plan, is_once=True)
    _make_late("packer", packer_parts(), plan, is_once=False)


def _take_a_core(context: ChildContext) -> None:
    """Binds learner and collector to different cores: woken by the other on the same one, it would delay it.

    Where there are more threads than these two, no process is bound to a core.
    """
    cores, runner = sorted(os.sched_getaffinity(0)), WorkerSpec.of(context).cfg.runner
    if runner.world_size == 1 and runner.name != "double_buffer":
        os.sched_setaffinity(0, cores[:1] if context.role == "learner" else cores[1:] or cores)


def _make_late(track: str, phases: dict[str, tuple[Part, ...]], plan: Plan, *, is_once: bool) -> None:
    for phase, parts in phases.items():
        for owner, method in parts:
            setattr(owner, method, _late(f"{track}.{phase}", getattr(owner, method), plan, is_once=is_once))


def _late(name: str, real: Callable[..., Any], plan: Plan, *, is_once: bool) -> Callable[..., Any]:
    """`real`, late while the plan says so; `is_once` per iteration, however often it is called."""
    last = -1

    def late(*args: Any, **kwargs: Any) -> Any:
        nonlocal last
        iteration = plan.iteration
        delay_ms = plan.delay_ms(name, iteration)
        if delay_ms and not (is_once and iteration == last):
            last = iteration
            time.sleep(delay_ms / 1000.0)
        return real(*args, **kwargs)

    return late
