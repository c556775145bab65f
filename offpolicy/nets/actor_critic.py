"""An actor and a critic of V(s) as one network, for the algorithms that train both on one loss."""

from __future__ import annotations

from torch import Tensor, nn

from offpolicy.config.schema import AlgoConfig
from offpolicy.nets.actors import CategoricalActor, GaussianActor
from offpolicy.nets.critics import ValueCritic
from offpolicy.nets.distributions import PolicyDistribution
from offpolicy.nets.hora import TeacherActor
from offpolicy.nets.policy import Actor
from offpolicy.types import SpaceSpec

StochasticActor = GaussianActor | CategoricalActor | TeacherActor


class ActorCritic(nn.Module):
    """Two networks side by side: observations [..., O], as the networks see them, to a policy and to values [...]."""

    def __init__(self, actor: StochasticActor, critic: ValueCritic) -> None:
        super().__init__()
        self.actor = actor
        self.critic = critic

    def forward(self, obs: Tensor) -> tuple[PolicyDistribution, Tensor]:
        """The policy and the critic's prediction, in its own units."""
        return self.actor.distribution(obs), self.critic.forward(obs)

    def value(self, obs: Tensor) -> Tensor:
        """The critic's prediction alone."""
        return self.critic.forward(obs)


def make_actor_critic(algo: AlgoConfig, spec: SpaceSpec, actor: Actor) -> ActorCritic:
    """The critic that `algo` asks for, beside `actor`; initialised from torch's global CPU generator."""
    assert isinstance(actor, StochasticActor)  # true by algo.name; narrows the union
    critic = ValueCritic(spec.obs_dim, algo.hidden_dims, algo.activation, normalize_value=algo.normalize_value)
    return ActorCritic(actor, critic)
