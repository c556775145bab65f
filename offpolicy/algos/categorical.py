"""Twin critics that predict distributions of the return, trained by cross entropy (C51, arXiv:1707.06887)."""

from __future__ import annotations

import torch
from torch import Tensor

from offpolicy.algos.learners import TargetNetwork, constant_view
from offpolicy.algos.losses import cross_entropy, projected
from offpolicy.algos.optim import GuardedAdam, Loss, OptimizerStep, is_replayed
from offpolicy.config.sections import AlgoConfig
from offpolicy.nets.critics import CategoricalTwinCritic
from offpolicy.nets.products import choose_products
from offpolicy.types import Batch


class CategoricalTrainer:
    """As a `CriticTrainer`: the twin critics, their targets and the one optimiser that holds both.

    Observation and next observation go through the batch norms as one batch, in the critics and in the targets, whose
    batch norms use the statistics of the batch too: rows of both policies' actions are normalised alike (CrossQ,
    arXiv:1902.05605, section 3). The targets' running statistics are never used.
    """

    def __init__(self, algo: AlgoConfig, critic: CategoricalTwinCritic, optimizer_step: OptimizerStep) -> None:
        self.online = critic
        self.target = TargetNetwork(critic, algo.tau, lambda twin: twin.parameters_by_layer().values())
        guard = optimizer_step.guard
        parameters, replayed = critic.parameters_by_layer(), is_replayed(algo, guard.flag.device)
        self.optimizer = GuardedAdam(parameters, algo.value(algo.critic_lr, 0), guard, is_replayed=replayed)
        self._constant = constant_view(critic)  # for the action's gradient, which costs nothing for the weights then
        choose_products(algo.products, critic, self.target.module, self._constant)
        self._optimizer_step = optimizer_step
        self._max_grad_norm = algo.max_grad_norm
        self._q: Tensor  # of the last `q`, with its graph
        self._action: Tensor

    def q(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns the expected values, with the running statistics, and keeps what their gradient needs. -> [C, B]."""
        with torch.enable_grad():
            self._action = action.detach().requires_grad_()
            self._q = self._constant.forward(obs, self._action)
        return self._q.detach()

    def action_gradient(self, d_q: Tensor) -> Tensor:
        """Returns the gradient by the action from that by the values of the last `q`. [C, B] -> [B, A]."""
        return torch.autograd.grad(self._q, self._action, d_q)[0]

    @torch.no_grad()
    def step(self, batch: Batch, next_action: Tensor, bonus: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Makes one update towards the distribution of r + gamma (z + bonus), z that of the target with the lower mean.

        `next_action` [B, A] at the next observations, `bonus` [B] of entropy, in the unit of the scaled rewards.
        Returns critic_loss, q_mean and target_q_mean, on the device.
        """
        num_rows = len(batch.reward)
        pairs = torch.cat((torch.cat((batch.obs, batch.action), 1), torch.cat((batch.next_obs, next_action), 1)))
        target = self._target(batch, pairs, bonus)
        with torch.enable_grad():
            log_probs = self.online.log_probs(pairs, of_batch=True)[:, :num_rows]
            loss = cross_entropy(target, log_probs)
        self._optimizer_step.minimize(Loss(loss, self.optimizer, self._max_grad_norm))
        bins = self.online.bins
        return loss.detach(), self.online.means(log_probs.detach()).mean(), (target * bins).sum(dim=1).mean()

    def _target(self, batch: Batch, pairs: Tensor, bonus: Tensor) -> Tensor:
        """Returns the target distributions [B, K]."""
        critic = self.target.module
        log_probs = critic.log_probs(pairs, of_batch=True)[:, len(batch.reward) :]
        lower = critic.means(log_probs).argmin(dim=0)
        chosen = log_probs.gather(0, lower[None, :, None].expand(1, -1, log_probs.shape[2])).squeeze(0)
        factor = torch.addcmul(batch.discount, batch.discount, batch.terminated, value=-1.0)
        return projected(chosen, critic.bins, batch.reward, factor, bonus)
