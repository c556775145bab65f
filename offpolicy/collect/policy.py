"""Acting: uniform random actions until learning starts, then the newest complete weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from offpolicy.collect.repeated_noise import RepeatedNoise
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.errors import NumericsError
from offpolicy.nets.policy import Policy, adopt_flat, adopt_statistics, flat_size
from offpolicy.output import counted
from offpolicy.processes.handshake import steps_per_collector
from offpolicy.processes.mailbox import Mailbox
from offpolicy.seeding import generator, torch_seed
from offpolicy.types import Float32, PolicyOutput, SpaceSpec

LARGEST_OBS = 1e18  # from where on an observation's square is not finite: NaN is then no fault of the networks


@dataclass(frozen=True, slots=True)
class Exploration:
    """The exploration of a collector, as a function of its own transitions."""

    warmup_steps: int  # transitions before the policy acts: uniform actions
    noise_at: Callable[[int], float] | None = None  # the exploration noise, where it changes during the run
    noise_repeat: int = 1  # steps for which an environment holds its noise, at most

    @classmethod
    def of(cls, algo: AlgoConfig, num_collectors: int) -> Exploration:
        """Returns the exploration of one of so many collectors."""
        return cls(
            warmup_steps=0 if algo.learns_from_rollouts else steps_per_collector(algo.learning_starts, num_collectors),
            noise_at=noise_schedule(algo, num_collectors),
            noise_repeat=algo.noise_repeat,
        )


def noise_schedule(algo: AlgoConfig, num_collectors: int) -> Callable[[int], float] | None:
    """Returns the exploration noise by a collector's own transitions; None where it is one number.

    All collectors do as many transitions, so those of the others are known. What they have really done would depend on
    the moment of asking, and a resumed run would act differently.
    """
    ramp = algo.ramps.get("exploration_noise")
    return None if ramp is None else lambda own_steps: ramp.at(own_steps * num_collectors)


class CollectorPolicy:
    """The collector's copy of the policy and its random streams."""

    def __init__(
        self,
        policy: Policy,
        mailbox: Mailbox,
        exploration: Exploration,
        *,
        spec: SpaceSpec,
        seed: int,
        path: tuple[int, ...],
    ) -> None:
        """`seed` and `path` name its random streams: every collector has others."""
        self._policy, self._mailbox = policy.eval(), mailbox
        self._exploration, self._spec = exploration, spec
        self._flat = np.zeros(flat_size(policy), dtype=np.float32)
        adopt_flat(policy, self._flat)
        self.policy_rng = torch.Generator()
        self.version = 0  # version of the weights it acts with; 0: none were published yet
        self.reseed(seed, *path)

    def reseed(self, seed: int, *path: int) -> None:
        """Restarts the random streams, and holds no noise; `path` tells one collector, or one start, from another."""
        self.warmup_rng = generator(seed, "warmup_action", *path)
        self.policy_rng.manual_seed(torch_seed(seed, "exploration", *path))
        longest = self._exploration.noise_repeat
        self.repeated_noise = RepeatedNoise(longest, self._spec.action_dim) if longest > 1 else None

    def is_random(self, env_steps: int) -> bool:
        """True if actions are still uniform, after `env_steps` own transitions."""
        return env_steps < self._exploration.warmup_steps

    def refresh(self) -> bool:
        """Takes the newest published weights, with one copy; False if there are none newer."""
        if self._mailbox.version <= self.version:
            return False
        self.version = self._mailbox.read(self._flat)
        adopt_statistics(self._policy, self._flat)
        return True

    def act(self, obs: Float32, env_steps: int) -> PolicyOutput:
        """Returns exploratory actions [N, A] for obs [N, O]. Raises `NumericsError` for NaN of a sound observation."""
        if self.is_random(env_steps):
            return PolicyOutput(random_actions(self._spec, self.warmup_rng, len(obs)), None, self.version)
        output = self._explore(obs, env_steps)
        require_sound(output.action, obs, output.log_prob, f"after {env_steps} env steps of this collector")
        return output

    def _explore(self, obs: Float32, env_steps: int) -> PolicyOutput:
        if self._exploration.noise_at is not None:
            self._policy.explore_with(self._exploration.noise_at(env_steps))
        if self.repeated_noise is not None:
            noise = self.repeated_noise.draw(len(obs), self.policy_rng)
            return PolicyOutput(self._policy.act_with_noise(torch.from_numpy(obs), noise).numpy(), None, self.version)
        with torch.inference_mode():
            drawn, log_prob = self._policy.sample(torch.from_numpy(obs), self.policy_rng)
        return PolicyOutput(drawn.numpy(), None if log_prob is None else log_prob.numpy(), self.version)


class BadEpisodeError(NumericsError):
    """An environment gives NaN or Inf in an episode of an evaluation or a film."""

    @classmethod
    def of(cls, what: str, episode: int, num_steps: int) -> BadEpisodeError:
        """`what` is an observation that must be acted on, or a reward; `num_steps` those of the episode so far."""
        where = f"episode {episode} of the evaluation, after {counted(num_steps, 'step')}"
        return cls(f"NaN or Inf in {what} of the environment: {where}")


def require_sound(
    action: Float32, obs: Float32, log_prob: Float32 | None = None, when: str = "without exploration"
) -> None:
    """Raises `NumericsError` where NaN or Inf is the policy's own: an environment could only answer with more of it.

    action: [N, A] for obs [N, O], log_prob: [N]. `when` the policy has acted is in the message.
    """
    if math.isfinite(action.sum() + (0.0 if log_prob is None else log_prob.sum())):
        return
    columns = [action.reshape(len(obs), -1)] + ([] if log_prob is None else [log_prob.reshape(len(obs), -1)])
    largest = np.abs(obs).max(axis=1)  # [N], NaN where an observation holds one
    bad = ~np.isfinite(np.concatenate(columns, axis=1)).all(axis=1) & (largest < LARGEST_OBS)
    if bad.any():
        env = int(bad.argmax())
        raise NumericsError(
            f"the policy's action for environment {env} {when} is NaN or Inf, and its observation, of at most"
            f" {largest[env]:g}, is not: the networks have diverged. Lower algo.actor_lr or algo.critic_lr (APPO and"
            " HORA: algo.lr), set algo.max_grad_norm, or check the scale of rewards and observations"
            " (algo.normalize_obs=true)"
        )


def random_actions(spec: SpaceSpec, rng: np.random.Generator, count: int) -> Float32:
    """Returns uniformly random actions [count, A], from [-1, 1] or from the numbers of discrete ones."""
    if spec.choices:
        return rng.integers(spec.choices, size=(count, spec.action_dim)).astype(np.float32)
    return rng.uniform(-1.0, 1.0, (count, spec.action_dim)).astype(np.float32)
