"""The floating-point operations of an update and of a decision, counted by torch while a learner makes updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from offpolicy.algos.registry import make_learner
from offpolicy.config.schema import RunConfig
from offpolicy.onednn import OPERATOR
from offpolicy.types import Batch, Batches, Product, Rollouts, SpaceSpec

Products = Counter[tuple[int, int, int, bool]]  # how often [a, b] x [b, c] is multiplied, by (a, b, c, by oneDNN)


class Work(NamedTuple):
    """Floating-point operations of one learner rank and of one collector, as `FlopCounterMode` counts them."""

    update: float  # of one gradient update, as `num_updates` counts them, on average over an iteration
    decision: float  # of one policy forward pass, per environment and step
    products: tuple[Product, ...]  # the matrix products of one gradient update, on average over an iteration


def count_work(cfg: RunConfig, spec: SpaceSpec, device: torch.device, num_hosts: int = 1) -> Work:
    """Returns the work of a run per learner rank; of several hosts each has the ranks and collectors of `cfg`.

    A learner without other ranks learns from zeros: `policy_delay` batches, or a batch of rollouts for one epoch and
    another for two, which say what is done once per batch of rollouts and what once per epoch.
    """
    algo, ranks, is_rounded = cfg.algo, cfg.runner.world_size, cfg.algo.precision == "bf16"
    learner = make_learner(replace(algo, epochs=1), spec, device, seed=0)
    if algo.learns_from_rollouts:
        num_envs = cfg.env.num_envs * (cfg.collect.num_collectors // ranks)
        rollouts = _rollouts(spec, cfg.rollout.length, num_envs, device)
        other = make_learner(replace(algo, epochs=2), spec, device, seed=0)
        num_updates, more = algo.epochs * algo.num_minibatches, algo.epochs - 1
        (flops, products), (of_two, made_of_two) = (_counted(one.update, rollouts) for one in (learner, other))
        flops += more * (of_two - flops)
        for key, number in list(products.items()):
            products[key] += more * (made_of_two[key] - number)
    else:
        num_updates = algo.policy_delay
        batches = _batches(spec, num_updates, algo.batch_size // (ranks * num_hosts), device)
        flops, products = _counted(learner.update, batches)
    decision, _ = _counted(learner.policy.act, torch.zeros(cfg.env.num_envs, spec.obs_dim, device=device))
    made = tuple(
        Product(rows, inner, columns, number / num_updates, is_rounded, is_onednn)
        for (rows, inner, columns, is_onednn), number in sorted(products.items())
    )
    return Work(flops / num_updates, decision / cfg.env.num_envs, made)


def _counted(work: Callable[[Any], object], material: object) -> tuple[int, Products]:  # Any: what the work takes
    """Returns the operations of some work, and its matrix products."""
    products = Products()

    def multiply(left: torch.Size, right: torch.Size, *, is_onednn: bool = False, **_: Any) -> int:  # Any: of torch
        *number, rows, inner = left
        products[rows, inner, right[-1], is_onednn] += (number or [1])[0]
        return 2 * left.numel() * right[-1]

    def add_multiply(_: torch.Size, left: torch.Size, right: torch.Size, **__: Any) -> int:  # Any: of torch
        return multiply(left, right)

    def onednn(left: torch.Size, turned: torch.Size, *_: Any, **__: Any) -> int:  # Any: of torch
        return multiply(left, torch.Size((turned[1], turned[0])), is_onednn=True)

    aten = torch.ops.aten
    formulas = {aten.mm: multiply, aten.bmm: multiply, aten.addmm: add_multiply, aten.baddbmm: add_multiply}
    with FlopCounterMode(display=False, custom_mapping={**formulas, OPERATOR: onednn}) as counter:
        work(material)
    return counter.get_total_flops(), products


def _batches(spec: SpaceSpec, num_updates: int, num_rows: int, device: torch.device) -> Batches:
    obs, column = torch.zeros(num_rows, spec.obs_dim, device=device), torch.zeros(num_rows, device=device)
    batch = Batch(obs, torch.zeros(num_rows, spec.action_dim, device=device), column, obs, column, column)
    return Batches((batch,) * num_updates, fresh_obs=None)


def _rollouts(spec: SpaceSpec, length: int, num_envs: int, device: torch.device) -> Rollouts:
    obs = torch.zeros(length + 1, num_envs, spec.obs_dim, device=device)
    action = torch.zeros(length, num_envs, spec.action_dim, device=device)
    column = torch.zeros(length, num_envs, device=device)
    return Rollouts(obs, action, column, column, column, column, torch.ones_like(column), progress=0.0)
