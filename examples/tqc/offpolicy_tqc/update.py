"""The update rule of TQC: SAC with quantile critics, whose target leaves the largest quantiles out."""

import torch
from torch.nn import functional

from offpolicy.algos.sac import Sac
from offpolicy.nets.critics import make_critic


class Tqc(Sac):
    """The critics and what is learnt from them; actor, temperature, schedules and what is saved are SAC's.

    B rows, two critics with M quantiles each, of which the target keeps K.
    """

    def make_critic(self, algo, spec):
        """Returns critics with an output for each quantile."""
        return make_critic(algo, spec, algo.num_quantiles)

    def target_q(self, batch, alpha):
        """Returns the targets [B, K]: the quantiles of both critics, pooled, without the largest (section 3)."""
        action, log_prob = self.sample(batch.next_obs)
        pooled = self.target_critic.module(batch.next_obs, action).transpose(0, 1).flatten(1).sort(dim=1).values
        kept = pooled[:, : pooled.shape[1] - 2 * self.algo.dropped] - alpha * log_prob[:, None]
        return batch.reward[:, None] + (batch.discount * (1.0 - batch.terminated))[:, None] * kept

    def critic_loss(self, batch, target_q):
        """Returns the quantile Huber loss [] (arXiv:1710.10044), and the quantiles of the actions taken [2, B, M]."""
        quantiles = self.critic(batch.obs, batch.action)
        levels = (torch.arange(quantiles.shape[2], device=quantiles.device) + 0.5) / quantiles.shape[2]  # [M]
        error = target_q[None, :, None, :] - quantiles[..., None]  # [2, B, M, K]
        huber = functional.huber_loss(error, torch.zeros_like(error), reduction="none")
        return ((levels[:, None] - (error.detach() < 0).float()).abs() * huber).mean(), quantiles

    def actor_q(self, obs, action):
        """Returns what the actor maximises: the mean of all quantiles. [B, O], [B, A] -> [B]."""
        return self.critic(obs, action).mean(dim=(0, 2))
