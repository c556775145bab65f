"""The floating-point operations of an update and of a decision, from the sizes of the layers: exact, and without torch.

Counted as `torch.utils.flop_counter.FlopCounterMode` counts: a product of [n, k] and [k, m] is 2 n k m, a convolution
over time is such a product per frame that it leaves; biases, activations, norms, Adam and Polyak averages are 0.

A chain of layers, whose products with one row cost f_1, ..., f_n, costs per row

    forward             f_1 + ... + f_n
    weight gradients    f_1 + ... + f_n
    input gradients     f_2 + ... + f_n, and f_1 too where something before the chain learns

because only an optimiser's own parameters are differentiated. What a row passes through on its way is one chain, be it
made of several networks. Everything here is per row of an update's batch; `work_of` multiplies by the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

from offpolicy.config.schema import AlgoConfig, RunConfig
from offpolicy.nets.hora_shapes import CHANNELS, CONVOLUTIONS, HISTORY, OBS, PRIVILEGED, lengths, num_unread
from offpolicy.nets.products import Layer, Tally, total
from offpolicy.types import Direction, Product, SpaceSpec

NUM_CRITICS = 2  # of SAC and TD3


class Work(NamedTuple):
    """Floating-point operations of one learner rank and of one collector."""

    update: float  # of one gradient update, as `num_updates` counts them, on average over an iteration
    inference: float  # of one policy forward pass, per environment and step


class Chain(NamedTuple):
    """Layers that a row passes through one after another."""

    layers: tuple[Layer, ...]

    @property
    def forward(self) -> Tally:
        """f_1 + ... + f_n."""
        return total(layer.going(Direction.FORWARD) for layer in self.layers)

    @property
    def backward_to_input(self) -> Tally:
        """The gradient of the input past frozen weights: f_n + ... + f_1. All columns of the input get one."""
        return total(layer.going(Direction.INPUTS) for layer in self.layers)

    @property
    def descent(self) -> Tally:
        """Forward, and the gradients of all weights but not of the input: 3 (f_1 + ... + f_n) - f_1."""
        weights = total(layer.going(Direction.WEIGHTS) for layer in self.layers)
        return self.forward + weights + total(layer.going(Direction.INPUTS) for layer in self.layers[1:])

    def then(self, after: Chain) -> Chain:
        """One chain of these layers and of those that their output passes through next."""
        return Chain(self.layers + after.layers)


def work_of(cfg: RunConfig, spec: SpaceSpec, num_hosts: int = 1) -> Work:
    """The work of a run, per learner rank; of several hosts each has the ranks and collectors of `cfg`.

    Autoreset rows are learnt from with weight 0: they cost what transitions cost.
    """
    per_row = _UPDATES[cfg.algo.name](cfg, spec).flops
    return Work(update=per_row * _update_rows(cfg, num_hosts), inference=_actor(cfg.algo, spec).forward.flops)


def products_of(cfg: RunConfig, spec: SpaceSpec, num_hosts: int = 1) -> tuple[Product, ...]:
    """The matrix products of one gradient update of a learner rank, on average over an iteration.

    What is prepared once for all minibatches counts as if it were made of them; convolutions as the products they are
    unfolded to.
    """
    rows = max(1, round(_update_rows(cfg, num_hosts)))
    return _UPDATES[cfg.algo.name](cfg, spec).products(rows)


def _update_rows(cfg: RunConfig, num_hosts: int) -> float:
    """Rows of one update on one rank: its share of a replayed batch, or a minibatch of its collectors' rollouts."""
    if not cfg.algo.learns_from_rollouts:
        return cfg.algo.batch_size // (cfg.runner.world_size * num_hosts)
    num_envs = cfg.env.num_envs * (cfg.collect.num_collectors // cfg.runner.world_size)
    return cfg.rollout.length * num_envs / cfg.algo.num_minibatches


def _mlp(*widths: int) -> Chain:
    """Linear layers between layers of these widths: f_i = 2 in out."""
    return Chain(tuple(Layer(before, after) for before, after in pairwise(widths)))


def _num_outputs(spec: SpaceSpec) -> int:
    """Of a policy that tells one number per action or per action dimension."""
    return spec.num_actions or spec.action_dim


def _dim(spec: SpaceSpec, group: str) -> int:
    return math.prod(spec.shape_of(group))


def _trunk(algo: AlgoConfig, spec: SpaceSpec) -> Chain:
    return _mlp(_dim(spec, OBS) + algo.latent_dim, *algo.hidden_dims, _num_outputs(spec))


def _encoder(algo: AlgoConfig, spec: SpaceSpec) -> Chain:
    return _mlp(_dim(spec, PRIVILEGED), *algo.encoder_dims, algo.latent_dim)


def _adaptation(algo: AlgoConfig, spec: SpaceSpec) -> Chain:
    """Two layers for each frame that is read; convolutions, 2 kernel channels^2 per frame that is left; a head."""
    num_frames, frame_dim = spec.shape_of(HISTORY)
    num_read, frames_after = num_frames - num_unread(num_frames), lengths(num_frames)[1:]
    per_frame = _mlp(frame_dim, CHANNELS, CHANNELS)
    kernels = (kernel for kernel, _ in CONVOLUTIONS)
    over_time = (Layer(kernel * CHANNELS, CHANNELS, left) for kernel, left in zip(kernels, frames_after, strict=True))
    head = _mlp(CHANNELS * frames_after[-1], algo.latent_dim)
    return Chain((*(layer._replace(times=num_read) for layer in per_frame.layers), *over_time, *head.layers))


def _squashed_gaussian(algo: AlgoConfig, spec: SpaceSpec) -> Chain:
    return _mlp(spec.obs_dim, *algo.hidden_dims, 2 * spec.action_dim)  # means and log stds


def _plain(algo: AlgoConfig, spec: SpaceSpec) -> Chain:
    return _mlp(spec.obs_dim, *algo.hidden_dims, _num_outputs(spec))


def _hora_actor(algo: AlgoConfig, spec: SpaceSpec) -> Chain:
    """The trunk behind what infers the latent: from the history (stage=adapt) or from the privileged part."""
    latent = _adaptation(algo, spec) if algo.is_adapting else _encoder(algo, spec)
    return latent.then(_trunk(algo, spec))


_ACTORS: Mapping[str, Callable[[AlgoConfig, SpaceSpec], Chain]] = {
    "sac": _squashed_gaussian,
    "td3": _plain,
    "appo": _plain,
    "hora": _hora_actor,
}


def _actor(algo: AlgoConfig, spec: SpaceSpec) -> Chain:
    return _ACTORS[algo.name](algo, spec)


def _sac(cfg: RunConfig, spec: SpaceSpec) -> Tally:
    """The actor is judged by the lesser of both critics."""
    return _from_replay(cfg.algo, spec, num_judges=NUM_CRITICS)


def _td3(cfg: RunConfig, spec: SpaceSpec) -> Tally:
    """The actor is judged by the first critic."""
    return _from_replay(cfg.algo, spec, num_judges=1)


def _from_replay(algo: AlgoConfig, spec: SpaceSpec, num_judges: int) -> Tally:
    """Of C critics, J judge the actor, every `policy_delay` updates.

    next action and target critics    pi.forward + C Q.forward
    critics                           C Q.descent
    actor past the frozen judges      (pi.descent + J (Q.forward + Q.backward_to_input)) / policy_delay
    """
    actor, critic = _actor(algo, spec), _mlp(spec.obs_dim + spec.action_dim, *algo.hidden_dims, 1)
    target = actor.forward + NUM_CRITICS * critic.forward
    actor_step = actor.descent + num_judges * (critic.forward + critic.backward_to_input)
    return target + NUM_CRITICS * critic.descent + actor_step / algo.policy_delay


def _appo(cfg: RunConfig, spec: SpaceSpec) -> Tally:
    """Of T vector steps, seen in every epoch: pi.descent + V.descent + (pi.forward + V.forward (T + 1) / T) / epochs.

    The last term is the preparation: once per batch of rollouts the policy of T observations and the values of T + 1.
    """
    actor, critic = _actor(cfg.algo, spec), _mlp(spec.obs_dim, *cfg.algo.hidden_dims, 1)
    values_per_row = (cfg.rollout.length + 1) / cfg.rollout.length
    preparation = actor.forward + critic.forward * values_per_row
    return actor.descent + critic.descent + preparation / cfg.algo.epochs


def _hora(cfg: RunConfig, spec: SpaceSpec) -> Tally:
    """stage=teach is APPO with encoder and trunk as its actor; stage=adapt: module.descent + encoder.forward / epochs.

    The trunk acts in the second stage but is not asked while learning.
    """
    if not cfg.algo.is_adapting:
        return _appo(cfg, spec)
    return _adaptation(cfg.algo, spec).descent + _encoder(cfg.algo, spec).forward / cfg.algo.epochs


_UPDATES: Mapping[str, Callable[[RunConfig, SpaceSpec], Tally]] = {
    "sac": _sac,
    "td3": _td3,
    "appo": _appo,
    "hora": _hora,
}
