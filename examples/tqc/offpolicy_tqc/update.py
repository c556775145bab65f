"""The update rule of TQC: SAC with quantile critics, whose target leaves the largest quantiles out."""

from types import SimpleNamespace

import torch
from torch.nn import functional

from offpolicy.algos.learner import MetricSums, Seeds
from offpolicy.algos.optim import GuardedAdam, Loss, OptimizerStep, TargetNetwork
from offpolicy.algos.sac import METRICS, Sac, Temperature
from offpolicy.nets.critics import make_critic
from offpolicy.nets.policy import make_policy


class Tqc(Sac):
    """Schedules, saved tensors and normaliser are SAC's; networks and updates are its own."""

    def __init__(self, algo, spec, device, seed, exchange):
        self._algo, seeds = algo, Seeds(seed)
        with seeds.initial_weights():
            self.policy = make_policy(algo, spec).to(device)
            critic = make_critic(algo, spec, algo.num_quantiles).to(device)
        self.metrics, self.optimizer_step = MetricSums(METRICS, device), OptimizerStep(device, exchange)
        self.generator, target = seeds.generator(device), TargetNetwork(critic, algo.tau)
        self._actor_optimizer, adam = (
            GuardedAdam(dict(net.named_parameters()), algo.value(lr, 0), self.optimizer_step.guard)
            for net, lr in ((self.policy.actor, algo.actor_lr), (critic, algo.critic_lr))
        )
        self._critic = SimpleNamespace(online=critic, target=target, optimizer=adam)
        self._temperature = Temperature(algo, spec, self.optimizer_step)
        self.levels = (torch.arange(algo.num_quantiles, device=device) + 0.5) / algo.num_quantiles  # [M]

    def update_once(self, batch, *, has_actor_step):
        alpha = self._temperature.alpha
        with torch.no_grad():  # section 3: the quantiles of both critics, pooled, without the largest
            action, log_prob = self.policy.actor.sample(batch.next_obs, self.generator)
            pooled = self._critic.target.module(batch.next_obs, action).transpose(0, 1).flatten(1).sort(dim=1).values
            kept = pooled[:, : pooled.shape[1] - 2 * self._algo.dropped] - alpha * log_prob[:, None]
            target = batch.reward[:, None] + (batch.discount * (1.0 - batch.terminated))[:, None] * kept  # [B, K]
        quantiles = self._critic.online(batch.obs, batch.action)  # [2, B, M]
        error = target[None, :, None, :] - quantiles[..., None]  # [2, B, M, K]
        huber = functional.huber_loss(error, torch.zeros_like(error), reduction="none")
        loss = ((self.levels[:, None] - (error.detach() < 0).float()).abs() * huber).mean()
        self.optimizer_step.minimize(Loss(loss, self._critic.optimizer, self._algo.max_grad_norm))
        measured = {"critic": (loss.detach(), quantiles.detach().mean(), target.mean())}
        self._critic.target.follow()
        return (measured | self._update_actor(batch.obs, alpha)) if has_actor_step else measured

    def _update_actor(self, obs, alpha):
        action, log_prob = self.policy.actor.sample(obs, self.generator)
        entropy, q = -log_prob.detach().mean(), self._critic.online(obs, action).mean(dim=(0, 2))
        loss = (alpha * log_prob - q).mean()
        tuned = [self._temperature.loss(alpha, entropy)] if self._temperature.is_tuned else []
        self.optimizer_step.minimize(Loss(loss, self._actor_optimizer, self._algo.max_grad_norm), *tuned)
        measured = {"actor": (loss.detach(), alpha, entropy)}
        return measured | ({"temperature": (tuned[0].value.detach(),)} if tuned else {})
