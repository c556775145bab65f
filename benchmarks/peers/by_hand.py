"""SAC and TD3 in the loop of `control.py` without autograd: a control for what the structure of our update costs.

Every product of an update is written down, forward and backward, and nothing is between them: no modules, no hooks, no
guards, no metrics. Networks of one kind lie in one block, with one fused Adam and one target step each. The library
that makes the products is chosen as ours is, biases and ReLU are one pass over the memory, from four environments on
these are stepped as ours are, and the noise of a batch is drawn at once. A trainer in torch can do little less per
update.

Usage: python -m benchmarks.peers.by_hand SETTINGS SECONDS SEED THREADS OUT, as control.py.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers.control import Batch, Trainer, run_program, separate_envs
from offpolicy.envs.batched.vector import TaskVector
from offpolicy.envs.vectorization import task_of
from offpolicy.onednn import ONEDNN, chosen_library, multiply

FEWEST_BATCHED = 4  # environments that are stepped by one call
BETAS, EPS = (0.9, 0.999), 1e-8
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
Memory = dict[int, tuple[list[Tensor], list[Tensor]]]  # activations and their gradients, by the number of rows
FEWEST_WEIGHTS = 128 * 128  # of a layer whose products oneDNN makes faster, on the processors where it is faster
NARROW = 4  # outputs per input of a first layer whose gradient a BLAS makes faster transposed


class Adam:
    """Adam (arXiv:1412.6980) of one block."""

    def __init__(self, size: int, lr: float) -> None:
        self.lr = lr
        self._mean, self._square, self._step = torch.zeros(size), torch.zeros(size), torch.zeros(())

    def step(self, block: Tensor, gradient: Tensor) -> None:
        self._step.add_(1)
        torch._fused_adam_(
            [block],
            [gradient],
            [self._mean],
            [self._square],
            [],
            [self._step],
            lr=self.lr,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=0.0,
            eps=EPS,
            amsgrad=False,
            maximize=False,
        )


class Nets:
    """C perceptrons with ReLU on one input, [B, I] -> [C, B, O], whose gradients are written down."""

    def __init__(self, num_nets: int, sizes: Sequence[int], lr: float = 0.0, memory: Memory | None = None) -> None:
        """`memory` is that of networks whose last pass is over when these are evaluated."""
        shapes = [
            shape for one, two in itertools.pairwise(sizes) for shape in ((num_nets, two, one), (num_nets, 1, two))
        ]
        self.sizes, total = list(sizes), sum(map(math.prod, shapes))
        self.block, self.gradient = torch.empty(total), torch.zeros(total)
        self.weights, self.biases = _views(self.block, shapes)
        self._weight_gradients, self._bias_gradients = _views(self.gradient, shapes)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            bound = 1 / math.sqrt(weight.shape[-1])
            weight.uniform_(-bound, bound)
            bias.uniform_(-bound, bound)
        is_onednn = chosen_library("auto") == ONEDNN
        self._is_onednn = [is_onednn and weight[0].numel() >= FEWEST_WEIGHTS for weight in self.weights]
        self.memory: Memory = {} if memory is None else memory
        self._first = torch.empty(num_nets, sizes[0], sizes[1]) if NARROW * sizes[0] <= sizes[1] else None
        self.adam = Adam(total, lr)

    def first(self) -> Nets:
        """The first of the networks alone, with the same parameters; its gradients by these have no memory."""
        one = copy.copy(self)
        one.weights, one.biases = ([tensor[:1] for tensor in tensors] for tensors in (self.weights, self.biases))
        one.memory = {}
        return one

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs, with one call per product; the activations stay for `backward`. [B, I] -> [C, B, O]."""
        self._inputs, self._rows = inputs, len(inputs)
        hidden, _ = self._kept(self._rows)
        below = inputs.expand(len(self.weights[0]), -1, -1)
        for layer, activations in enumerate(hidden):
            products = self._product(layer, below, self.weights[layer].mT, activations)
            below = torch._add_relu_(products, self.biases[layer])
        head, bias = self.weights[-1], self.biases[-1]
        return torch.baddbmm(bias, head, below.mT).mT if self.sizes[-1] == 1 else torch.baddbmm(bias, below, head.mT)

    def backward(self, d_output: Tensor, *, of_weights: bool = True) -> Tensor:
        """Fills `gradient`, if wanted; returns the gradient of the first products. [C, B, O] -> [C, B, H].

        Where `d_output` has fewer rows than the last `forward` had, it is that of the last ones.
        """
        rows, start = d_output.shape[1], self._rows - d_output.shape[1]
        hidden, (_, back) = self._kept(self._rows)[0], self._kept(rows)
        above = d_output
        for layer in range(len(hidden), 0, -1):
            below = hidden[layer - 1][:, start:]
            if of_weights:
                self._fill(layer, above, below)
            above = self._product(layer, above, self.weights[layer], back[layer - 1])
            torch.ops.aten.threshold_backward.grad_input(above, below, 0, grad_input=above)
        if of_weights:
            self._fill(0, above, self._inputs[start:].expand(len(above), -1, -1))
        return above

    def input_gradient(self, above: Tensor, start: int) -> Tensor:
        """The gradient of the inputs from column `start` on. [C, B, H] -> [B, I - start]."""
        return torch.bmm(above, self.weights[0][:, :, start:]).sum(dim=0)

    def step(self) -> None:
        self.adam.step(self.block, self.gradient)

    def _fill(self, layer: int, above: Tensor, below: Tensor) -> None:
        if layer == 0 and self._first is not None:
            self._weight_gradients[0].copy_(torch.bmm(below.mT, above, out=self._first).mT)
        else:
            self._product(layer, above.mT, below, self._weight_gradients[layer])
        torch.sum(above, dim=1, keepdim=True, out=self._bias_gradients[layer])

    def _product(self, layer: int, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        """The product for a layer: of all networks by one call, or by oneDNN. [C, a, b], [C, b, c] -> [C, a, c]."""
        if not self._is_onednn[layer]:
            return torch.bmm(left, right, out=out)
        for one, other, result in zip(left, right, out, strict=True):
            result.copy_(multiply(one, other))
        return out

    def _kept(self, rows: int) -> tuple[list[Tensor], list[Tensor]]:
        if rows not in self.memory:
            shapes = [(len(self.weights[0]), rows, size) for size in self.sizes[1:-1]]
            self.memory[rows] = ([torch.empty(shape) for shape in shapes], [torch.empty(shape) for shape in shapes])
        return self.memory[rows]


def _views(block: Tensor, shapes: Sequence[tuple[int, ...]]) -> tuple[list[Tensor], list[Tensor]]:
    """The weights and the biases that lie in a block one after the other."""
    parts = [part.view(shape) for part, shape in zip(block.split([*map(math.prod, shapes)]), shapes, strict=True)]
    return parts[::2], parts[1::2]


class Learner:
    """What both algorithms have: two critics with their targets in one block each."""

    def __init__(self, args: dict[str, Any], obs_dim: int, action_dim: int, num_outputs: int) -> None:
        self.args, self.obs_dim, self.action_dim, hidden = args, obs_dim, action_dim, args["hidden_dims"]
        self.actor = Nets(1, [obs_dim, *hidden, num_outputs], args["actor_lr"])
        self.critics = Nets(2, [obs_dim + action_dim, *hidden, 1], args["critic_lr"])
        self.targets = Nets(2, self.critics.sizes, memory=self.critics.memory)
        self.targets.block.copy_(self.critics.block)

    def target_q(self, batch: Batch, next_action: Tensor, bonus: Tensor | float) -> Tensor:
        """The targets of both critics. -> [B]."""
        _, _, next_obs, reward, terminated = batch
        next_q = self.targets.forward(torch.cat([next_obs, next_action], 1)).amin(dim=0).view(-1)
        return reward + (1 - terminated) * self.args["gamma"] * (next_q + bonus)

    def step_critics(self, obs: Tensor, action: Tensor, target_q: Tensor) -> None:
        error = self.critics.forward(torch.cat([obs, action], 1)) - target_q[:, None]
        self.critics.backward(error.mul_(2 / len(obs)))
        self.critics.step()

    def move_targets(self) -> None:
        self.targets.block.lerp_(self.critics.block, self.args["tau"])

    def found(self) -> dict[str, Any]:
        """The settings as the networks and optimisers have them."""
        hidden = [nets.sizes[1:-1] for nets in (self.actor, self.critics, self.targets)]
        same = hidden[0] if all(one == hidden[0] for one in hidden) else hidden
        return {"hidden_dims": same, "actor_lr": self.actor.adam.lr, "critic_lr": self.critics.adam.lr}


class Sac(Learner):
    """Soft actor-critic (arXiv:1812.05905) with a tuned temperature, as in control.py."""

    def __init__(self, args: dict[str, Any], obs_dim: int, action_dim: int) -> None:
        super().__init__(args, obs_dim, action_dim, 2 * action_dim)
        self.log_alpha, self._alpha_adam = torch.zeros(1), Adam(1, args["actor_lr"])
        self.noise: Tensor  # of the last actions, [B, A]

    def act(self, obs: Tensor) -> Tensor:
        mean, log_std = self.actor.forward(obs)[0].chunk(2, 1)
        return (mean + log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).exp() * torch.randn_like(mean)).tanh()

    def update(self, batch: Batch, number: int) -> None:
        obs, action, next_obs, *_ = batch
        alpha, size = self.log_alpha.exp(), len(obs)
        output = self.actor.forward(torch.cat([next_obs, obs]))[0]  # both at once: the actor is still the same
        mean, raw_log_std = output.chunk(2, 1)
        log_std = raw_log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        std, self.noise = log_std.exp(), torch.randn_like(mean)
        raw = torch.addcmul(mean, std, self.noise)
        both, constant = raw.tanh(), 0.5 * math.log(2 * math.pi) + 2 * math.log(2)
        log_prob = -(0.5 * self.noise.square() + log_std - 2 * (raw + F.softplus(-2 * raw)) + constant).sum(1)
        self.step_critics(obs, action, self.target_q(batch, both[:size], -alpha * log_prob[:size]))
        q = self.critics.forward(torch.cat([obs, both[size:]], 1))
        self.actor.backward(self._d_output(q, both[size:], std[size:], raw_log_std[size:], alpha))
        self.actor.step()
        self._alpha_adam.step(self.log_alpha, -alpha * (log_prob[size:].mean() - self.action_dim))
        self.move_targets()

    def _d_output(self, q: Tensor, action: Tensor, std: Tensor, raw_log_std: Tensor, alpha: Tensor) -> Tensor:
        """The gradient of mean(alpha log_prob - min Q) by the actor's output. -> [1, B, 2 A]."""
        size = len(action)
        is_first = (q[0] <= q[1]).float()
        d_q = torch.stack([is_first, 1 - is_first]).div_(-size)
        d_action = self.critics.input_gradient(self.critics.backward(d_q, of_weights=False), self.obs_dim)
        d_raw = d_action * (1 - action.square()) + 2 * alpha / size * action
        is_free = (raw_log_std > LOG_STD_MIN) & (raw_log_std < LOG_STD_MAX)
        d_log_std = (d_raw * std * self.noise[-size:] - alpha / size) * is_free
        return torch.cat([d_raw, d_log_std], 1)[None]


class Td3(Learner):
    """Twin delayed DDPG (arXiv:1802.09477), as in control.py."""

    def __init__(self, args: dict[str, Any], obs_dim: int, action_dim: int) -> None:
        super().__init__(args, obs_dim, action_dim, action_dim)
        self.target_actor = Nets(1, self.actor.sizes, memory=self.actor.memory)
        self.target_actor.block.copy_(self.actor.block)
        self._first_critic = self.critics.first()
        self.noise: Tensor  # of the last target actions, [B, A]

    def act(self, obs: Tensor) -> Tensor:
        action = self.actor.forward(obs)[0].tanh()
        return (action + 0.1 * torch.randn_like(action)).clamp(-1, 1)

    def update(self, batch: Batch, number: int) -> None:
        obs, action, next_obs, *_ = batch
        self.noise = (0.2 * torch.randn_like(action)).clamp(-0.5, 0.5)
        next_action = (self.target_actor.forward(next_obs)[0].tanh() + self.noise).clamp(-1, 1)
        self.step_critics(obs, action, self.target_q(batch, next_action, 0.0))
        if number % self.args["policy_delay"] == 0:
            new = self.actor.forward(obs)[0].tanh()
            critic, d_q = self._first_critic, torch.full((1, len(obs), 1), -1 / len(obs))
            critic.forward(torch.cat([obs, new], 1))
            d_action = critic.input_gradient(critic.backward(d_q, of_weights=False), self.obs_dim)
            self.actor.backward((d_action * (1 - new.square()))[None])
            self.actor.step()
            self.target_actor.block.lerp_(self.actor.block, self.args["tau"])
            self.move_targets()


@torch.no_grad()
def trainer_of(args: dict[str, Any], obs_dim: int, action_dim: int) -> Trainer:
    learner = (Sac if args["algo"] == "sac" else Td3)(args, obs_dim, action_dim)
    return Trainer(learner.act, torch.no_grad()(learner.update), learner.found())


def batched_envs(args: dict[str, Any]) -> VectorEnv[Any, Any, Any]:
    """Many environments as ours are: of one batch, stepped by one call."""
    if args["num_envs"] < FEWEST_BATCHED:
        return separate_envs(args)
    spec = gym.spec(args["env_id"])
    task: Any = load_env_creator(str(task_of(spec)))  # Any: its type is known by its name alone
    return TaskVector(task, gym.make(spec), args["num_envs"], torch.get_num_threads(), {})


if __name__ == "__main__":
    run_program(trainer_of, batched_envs)
