"""SAC and TD3 with their gradients written down: the updates of `sac.py` and `td3.py`, faster on a CPU (ADR 45).

For the standard case alone: Box actions, perceptrons with ReLU, tanh or ELU, float32. It was derived from the modules
of `DIGESTS`; where one of them says something else by now, the textbook is trained, which always is what is written.

- C networks on one input are one batched product per layer, which two threads share without waiting for each other.
- Activations and their gradients are written where those of the last update were: fresh memory costs a quarter of an
  update, because the kernel maps and clears it page by page.
- Gradients of the parameters are written straight into the block that the optimiser reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from offpolicy.algos.digests import changed_module
from offpolicy.algos.learner import Measured
from offpolicy.algos.losses import alpha_loss, sac_actor_loss, smoothed_target_action, soft_value, td_target
from offpolicy.algos.optim import GuardedAdam, Loss
from offpolicy.algos.sac import Sac
from offpolicy.algos.td3 import Td3
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.nets.actors import LOG_STD_MAX, LOG_STD_MIN, SquashedGaussianActor
from offpolicy.nets.distributions import LOG_SQRT_2PI
from offpolicy.nets.mlp import Columns
from offpolicy.nets.onednn import ONEDNN, chosen_library, multiply
from offpolicy.protocols import Exchange
from offpolicy.types import Batch, SpaceSpec

DIGESTS: Mapping[str, str] = {
    "offpolicy.algos.learner": "ab3aedb92677a6ce",
    "offpolicy.algos.losses": "cafd66ff7ea68b71",
    "offpolicy.algos.optim": "058e9bfe28776905",
    "offpolicy.algos.sac": "67dce3bbcbc2db96",
    "offpolicy.algos.td3": "0095fcc4dc52548b",
    "offpolicy.nets.actors": "b8176f96cfcecc9a",
    "offpolicy.nets.critics": "46a75eee528013ac",
    "offpolicy.nets.distributions": "dcc14ab3a95f41de",
    "offpolicy.nets.flat": "6670e6dee5cfe719",
    "offpolicy.nets.mlp": "6239bd02f559a56f",
    "offpolicy.nets.normalizer": "3072436b8f339058",
    "offpolicy.nets.policy": "7eb7459a63cbaa64",
}  # as `digests_of` returns them
FEWEST_WEIGHTS = 128 * 128  # of a layer whose products oneDNN makes faster
NARROW = 4  # from so many outputs per input on a BLAS makes the gradient of a first layer faster transposed

_aten = torch.ops.aten
# Activations in place, and their derivatives from the gradient d of the result and the result h, in the place of d.
ACTIVATIONS: Mapping[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    nn.ReLU: (lambda h: h.clamp_min_(0.0), lambda d, h: _aten.threshold_backward.grad_input(d, h, 0, grad_input=d)),
    nn.Tanh: (torch.tanh_, lambda d, h: _aten.tanh_backward.grad_input(d, h, grad_input=d)),
    nn.ELU: (nn.functional.elu_, lambda d, h: _aten.elu_backward.grad_input(d, 1.0, 1.0, 1.0, True, h, grad_input=d)),
}
Memory = dict[int, tuple[list[Tensor], list[Tensor]]]  # hidden activations and their gradients, by the number of rows


class Perceptrons:
    """C perceptrons of equal layers on one input: [B, I] -> [C, B, O]. Their parameters lie in an optimiser's block."""

    def __init__(
        self, nets: Sequence[nn.Sequential], optimizer: GuardedAdam | None, products: str, memory: Memory | None = None
    ) -> None:
        """`optimizer` is that of the parameters; None where they are not learnt here. `products` is `algo.products`.

        `memory` is that of other networks: what their `forward` kept there is gone after a `forward` of these.
        """
        layers = list(zip(*([one for one in net if isinstance(one, nn.Linear)] for net in nets), strict=True))
        parameters = [([one.weight for one in layer], [one.bias for one in layer]) for layer in layers]
        self.weights = [_stacked(weights) for weights, _ in parameters]  # of each layer [C, out, in]
        self.weights_t = [weight.mT for weight in self.weights]
        self.biases = [_stacked(biases)[:, None] for _, biases in parameters]  # [C, 1, out]
        if optimizer is not None:
            gradients = optimizer.gradients
            self.d_weights = [_stacked([gradients[one] for one in weights]) for weights, _ in parameters]
            self.d_biases = [_stacked([gradients[one] for one in biases])[:, None] for _, biases in parameters]
        self.memory: Memory = {} if memory is None else memory
        self._activate, self._differentiate = ACTIVATIONS[type(nets[0][-2])]
        self._columns = nets[0][0].columns if isinstance(nets[0][0], Columns) else slice(None)
        is_onednn = chosen_library(products) == ONEDNN
        self._is_onednn = [is_onednn and one[0].numel() >= FEWEST_WEIGHTS for one in self.weights[:-1]] + [False]
        num_nets, width, num_inputs = self.weights[0].shape
        self._d_first = self.weights[0].new_empty(num_nets, num_inputs, width) if NARROW * num_inputs <= width else None

    def forward(self, *parts: Tensor) -> Tensor:
        """Returns the outputs for inputs side by side, and keeps what `backward` needs. [B, I_1], ... -> [C, B, O]."""
        self._inputs = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0][:, self._columns].contiguous()
        below = self._inputs.expand(len(self.weights[0]), -1, -1)
        for layer, hidden in enumerate(self._kept(len(self._inputs))[0]):
            below = self._activate(self._product(layer, below, self.weights_t[layer], hidden).add_(self.biases[layer]))
        if self.biases[-1].shape[2] == 1:  # with the rows on the right the product of two takes a third of the time
            return torch.baddbmm(self.biases[-1], self.weights[-1], below.mT).mT
        return torch.baddbmm(self.biases[-1], below, self.weights_t[-1])

    def backward(self, d_output: Tensor, *, of_weights: bool = True) -> Tensor:
        """Writes the gradients of the parameters, if wanted; returns that of the first products. -> [C, B, H].

        `d_output` [C, B, O] is that of the last B rows of the last `forward`.
        """
        num_rows, above, inputs = d_output.shape[1], d_output, self._inputs
        hidden, (_, back) = self._kept(len(inputs))[0], self._kept(num_rows)
        if num_rows < len(inputs):
            inputs, hidden = inputs[-num_rows:], [one[:, -num_rows:] for one in hidden]
        for layer in range(len(hidden), 0, -1):
            below = hidden[layer - 1]
            if of_weights:
                self._write(layer, above, below)
            above = self._differentiate(self._product(layer, above, self.weights[layer], back[layer - 1]), below)
        if of_weights:
            self._write(0, above, inputs.expand(len(above), -1, -1))
        return above

    def input_gradient(self, above: Tensor, start: int) -> Tensor:
        """Returns the gradient of the inputs from column `start` on, from that of the first products. -> [B, I - s]."""
        return torch.bmm(above, self.weights[0][:, :, start:]).sum(dim=0)

    def _write(self, layer: int, above: Tensor, below: Tensor) -> None:
        """Writes the gradients of a layer from those of its products [C, B, out] and its inputs [C, B, in]."""
        if layer == 0 and self._d_first is not None:
            self.d_weights[0].copy_(torch.bmm(below.mT, above, out=self._d_first).mT)
        else:
            self._product(layer, above.mT, below, self.d_weights[layer])
        torch.sum(above, dim=1, keepdim=True, out=self.d_biases[layer])

    def _product(self, layer: int, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        """Multiplies [C, a, b] and [C, b, c] for a layer; oneDNN one network after the other, into fresh memory."""
        if not self._is_onednn[layer]:
            return torch.bmm(left, right, out=out)
        for one, other, result in zip(left, right, out, strict=True):
            result.copy_(multiply(one, other))
        return out

    def _kept(self, rows: int) -> tuple[list[Tensor], list[Tensor]]:
        if rows not in self.memory:
            shapes = [(len(weight), rows, weight.shape[1]) for weight in self.weights[:-1]]
            self.memory[rows] = ([torch.empty(shape) for shape in shapes], [torch.empty(shape) for shape in shapes])
        return self.memory[rows]


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Returns tensors of one shape, which an optimiser has joined layer by layer, as one [C, ...] in their memory."""
    first = tensors[0].detach()
    step = tensors[-1].storage_offset() - first.storage_offset()
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()), first.storage_offset())


class Sample(NamedTuple):
    """Actions of a squashed Gaussian, and what their gradient needs; all [B, A] but the log-probability [B]."""

    action: Tensor
    raw_log_std: Tensor  # not clamped
    std: Tensor
    noise: Tensor  # unit
    log_prob: Tensor

    @classmethod
    def of(cls, output: Tensor, noise: Tensor) -> Sample:
        """Returns the actions for the output [B, 2 A] of the actor's network."""
        mean, raw_log_std = torch.chunk(output, 2, dim=-1)
        log_std = raw_log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        std = log_std.exp()
        pre_tanh = torch.addcmul(mean, std, noise)
        # As `squashed_gaussian_log_prob`; softplus(-2 u) is -2 times what torch makes with beta = -2.
        minus = torch.addcmul(log_std, noise, noise, value=0.5).sub_(pre_tanh, alpha=2.0)
        minus.add_(nn.functional.softplus(pre_tanh, beta=-2.0), alpha=4.0).add_(LOG_SQRT_2PI + 2.0 * math.log(2.0))
        return cls(pre_tanh.tanh(), raw_log_std, std, noise, minus.sum(dim=-1).neg_())

    def d_output(self, d_action: Tensor, d_log_prob: Tensor) -> Tensor:
        """Returns the gradient [B, 2 A] by the network's output from those by action [B, A] and log-probability []."""
        # da/du = 1 - a^2, d log p/du = 2 a, du/d log std = std noise, d log p/d log std = -1; beyond the bounds 0.
        d_pre_tanh = _aten.tanh_backward(d_action, self.action).addcmul_(d_log_prob, self.action, value=2.0)
        d_log_std = (d_pre_tanh * self.std).mul_(self.noise).sub_(d_log_prob)
        d_log_std = _aten.hardtanh_backward(d_log_std, self.raw_log_std, LOG_STD_MIN, LOG_STD_MAX)
        return torch.cat((d_pre_tanh, d_log_std), dim=1)


class FastCritics:
    """The critics and target critics of a rule, as they are trained here."""

    def __init__(self, rule: Sac | Td3) -> None:
        critic, target, algo = rule.critic, rule.target_critic.module, rule.algo
        self._rule = rule
        self.online = Perceptrons((critic.first, critic.second), rule.critic_optimizer, algo.products)
        self.target = Perceptrons((target.first, target.second), None, algo.products, self.online.memory)

    def step(self, batch: Batch, target_q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Makes one update towards target_q [B]. Returns critic_loss, q_mean and target_q_mean."""
        q = self.online.forward(batch.obs, batch.action).squeeze(-1)
        error, num_rows = q - target_q, len(target_q)  # [C, B]
        loss = torch.linalg.vector_norm(error).square_().div_(num_rows)  # `critic_loss`: the sum of both means
        # A column of a transposed row: for `d_q[..., None]` the product for the head's weights takes twice as long.
        self.online.backward(error.mul_(2.0 / num_rows)[:, None].mT)
        self._rule.optimizer_step.step(Loss(loss, self._rule.critic_optimizer, self._rule.algo.max_grad_norm))
        return loss, q.mean(), target_q.mean()


class FastSac(Sac):
    """`Sac` with its gradients written down. With an actor step one pass evaluates the actor in both observations."""

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec, device: torch.device, seed: int, exchange: Exchange) -> None:
        super().__init__(algo, spec, device, seed, exchange)
        self.fast_critics, self.obs_dim = FastCritics(self), spec.obs_dim
        body = cast(SquashedGaussianActor, self.actor).body
        self.fast_actor = Perceptrons((body,), self.actor_optimizer, algo.products)

    @torch.inference_mode()
    def update_once(self, batch: Batch, *, has_actor_step: bool) -> Measured:
        """See `Sac`."""
        alpha, num_rows = self.temperature.alpha, len(batch.reward)
        obs = torch.cat((batch.next_obs, batch.obs)) if has_actor_step else batch.next_obs
        output = self.fast_actor.forward(obs)[0]
        noise = output.new_empty(len(output), output.shape[1] // 2)
        for rows in torch.split(noise, num_rows):  # one after the other, as the textbook draws them
            rows.normal_(generator=self.generator)
        sample = Sample.of(output, noise)
        next_q = self.fast_critics.target.forward(batch.next_obs, sample.action[:num_rows]).squeeze(-1)
        next_value = soft_value(next_q, sample.log_prob[:num_rows], alpha)
        target_q = td_target(batch.reward, batch.discount, batch.terminated, next_value)
        measured: Measured = {"critic": self.fast_critics.step(batch, target_q)}
        if has_actor_step:
            measured |= self._update_actor(batch.obs, Sample(*(part[num_rows:] for part in sample)), alpha)
        self.target_critic.follow()
        return measured

    def _update_actor(self, obs: Tensor, sample: Sample, alpha: Tensor) -> Measured:
        q = self.fast_critics.online.forward(obs, sample.action).squeeze(-1)
        least, which = q.min(dim=0)
        d_q = torch.zeros_like(q).scatter_(0, which[None], -1.0 / len(obs))
        above = self.fast_critics.online.backward(d_q[..., None], of_weights=False)
        d_action = self.fast_critics.online.input_gradient(above, self.obs_dim)
        self.fast_actor.backward(sample.d_output(d_action, alpha / len(obs))[None])
        loss, entropy = sac_actor_loss(least, sample.log_prob, alpha), -sample.log_prob.mean()
        losses = [Loss(loss, self.actor_optimizer, self.algo.max_grad_norm)]
        measured: Measured = {"actor": (loss, alpha, entropy)}
        if self.temperature.is_tuned:
            of_alpha = alpha_loss(alpha, entropy, self.temperature.target_entropy)
            self.temperature.optimizer.gradient.copy_(of_alpha)  # by log alpha the loss is its own derivative
            losses.append(Loss(of_alpha, self.temperature.optimizer))
            measured["temperature"] = (of_alpha,)
        self.optimizer_step.step(*losses)
        return measured


class FastTd3(Td3):
    """`Td3` with its gradients written down."""

    def __init__(self, algo: AlgoConfig, spec: SpaceSpec, device: torch.device, seed: int, exchange: Exchange) -> None:
        super().__init__(algo, spec, device, seed, exchange)
        self.fast_critics, self.obs_dim = FastCritics(self), spec.obs_dim
        self.fast_critic = Perceptrons((self.critic.first,), None, algo.products)
        self.fast_actor = Perceptrons((self.actor.body,), self.actor_optimizer, algo.products)
        target = (self.target_actor.module.body,)
        self.fast_target_actor = Perceptrons(target, None, algo.products, self.fast_actor.memory)

    @torch.inference_mode()
    def update_once(self, batch: Batch, *, has_actor_step: bool) -> Measured:
        """See `Td3`."""
        measured: Measured = {"critic": self.fast_critics.step(batch, self.target_q(batch))}
        if has_actor_step:
            measured["actor"] = (self._update_actor(batch.obs),)
            self.target_critic.follow()
            self.target_actor.follow()
        return measured

    def target_q(self, batch: Batch) -> Tensor:
        """See `Td3`."""
        action = self.fast_target_actor.forward(batch.next_obs)[0].tanh()
        noise = torch.randn(action.shape, generator=self.generator)
        next_action = smoothed_target_action(action, noise, self.algo.target_noise, self.algo.target_noise_clip)
        next_q = self.fast_critics.target.forward(batch.next_obs, next_action).squeeze(-1)
        return td_target(batch.reward, batch.discount, batch.terminated, next_q.amin(dim=0))

    def _update_actor(self, obs: Tensor) -> Tensor:
        action = self.fast_actor.forward(obs)[0].tanh()
        q = self.fast_critic.forward(obs, action)
        above = self.fast_critic.backward(torch.full_like(q, -1.0 / len(obs)), of_weights=False)
        d_action = self.fast_critic.input_gradient(above, self.obs_dim)
        self.fast_actor.backward(_aten.tanh_backward(d_action, action)[None])
        loss = -q.mean()
        self.optimizer_step.step(Loss(loss, self.actor_optimizer, self.algo.max_grad_norm))
        return loss


RULES: Mapping[object, type[FastSac | FastTd3]] = {Sac: FastSac, Td3: FastTd3}


def why_not(rule: object, algo: AlgoConfig, spec: SpaceSpec, device: torch.device) -> str:
    """Returns why an update rule of these options has no fast kernels; '' where it has."""
    if rule not in RULES or algo.why_not_fast:
        return algo.why_not_fast or f"algo={algo.name}"
    if device.type != "cpu" or spec.choices:
        return "discrete actions" if spec.choices else f"device={device}"
    changed = changed_module(f"offpolicy.algos.{algo.name}", DIGESTS)
    return changed and f"{changed}, which has changed since the fast kernels were derived from it"
