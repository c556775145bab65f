"""Acting: uniform random actions until learning starts, then the newest complete weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offpolicy.config.schema import RunConfig
from offpolicy.errors import NumericsError
from offpolicy.nets.actors import Explored
from offpolicy.nets.policy import Policy, adopt_flat, adopt_statistics, flat_size
from offpolicy.output import counted
from offpolicy.processes.handshake import steps_per_collector
from offpolicy.processes.mailbox import Mailbox
from offpolicy.seeding import generator, torch_seed
from offpolicy.types import Float32, PolicyOutput, SpaceSpec

POWER = 2.0  # noise is repeated for n steps with P(n) ~ n^-2: mostly one step, now and then many
CPU = torch.device("cpu")
LARGEST_OBS = 1e18  # from where on an observation's square is not finite: NaN is then no fault of the networks


class CollectorPolicy:
    """The collector's copy of the policy and its random streams, of which every collector has others."""

    def __init__(
        self,
        policy: Policy,
        mailbox: Mailbox | None,
        cfg: RunConfig,
        spec: SpaceSpec,
        *,
        number: int,
        num_collectors: int,
    ) -> None:
        """`number` is that of the collector among the `num_collectors` of all hosts.

        Without a mailbox the policy is the learner's, which is always the newest, and lies on its device.
        """
        algo = cfg.algo
        self._policy, self._mailbox, self._spec = policy.eval(), mailbox, spec
        self._seed, self._path, self._num_collectors = cfg.seed, (number,) if number else (), num_collectors
        # Transitions of this collector before the policy acts.
        self._random_steps = (
            0 if algo.learns_from_rollouts else steps_per_collector(algo.learning_starts, num_collectors)
        )
        self._noise_ramp = algo.ramps.get("exploration_noise")  # None: one number during the whole run
        self._longest_noise = algo.noise_repeat
        if mailbox is not None:
            self._flat = np.zeros(flat_size(policy), dtype=np.float32)
            adopt_flat(policy, self._flat)
        self.policy_rng = torch.Generator(next(policy.parameters()).device)
        self.version = 0  # version of the weights it acts with; 0: none were published yet
        self.reseed()

    def reseed(self, *start: int) -> None:
        """Restarts the random streams, and holds no noise; `start` tells one start of a run from another."""
        self.warmup_rng = generator(self._seed, "warmup_action", *self._path, *start)
        self.policy_rng.manual_seed(torch_seed(self._seed, "exploration", *self._path, *start))
        longest, device = self._longest_noise, self.policy_rng.device
        self.repeated_noise = RepeatedNoise(longest, self._spec.action_dim, device) if longest > 1 else None

    def is_random(self, env_steps: int) -> bool:
        """True if actions are still uniform, after `env_steps` own transitions."""
        return env_steps < self._random_steps

    def refresh(self) -> bool:
        """Takes the newest published weights, with one copy; False if there are none newer."""
        if self._mailbox is None or self._mailbox.version <= self.version:
            return False
        self.version = self._mailbox.read(self._flat)
        adopt_statistics(self._policy, self._flat)
        return True

    def act(self, obs: Float32, env_steps: int) -> PolicyOutput:
        """Returns exploratory actions [N, A] for obs [N, O]. Raises `NumericsError` for NaN of a sound observation."""
        if self.is_random(env_steps):
            return PolicyOutput(random_actions(self._spec, self.warmup_rng, len(obs)), None, self.version)
        drawn, log_prob = self.explore(torch.from_numpy(obs).to(self.policy_rng.device), env_steps)
        output = PolicyOutput(drawn.cpu().numpy(), None if log_prob is None else log_prob.numpy(), self.version)
        require_sound(output.action, obs, output.log_prob, f"after {env_steps} env steps of this collector")
        return output

    def explore(self, obs: Tensor, env_steps: int) -> Explored:
        """Returns the policy's exploratory actions [N, A], with log-probabilities [N] where they are learnt from."""
        if self._noise_ramp is not None:
            # All collectors do as many transitions. What the others have really done would depend on the moment of
            # asking, and a resumed run would act differently.
            self._policy.explore_with(self._noise_ramp.at(env_steps * self._num_collectors))
        if self.repeated_noise is not None:
            return self._policy.act_with_noise(obs, self.repeated_noise.draw(len(obs), self.policy_rng)), None
        with torch.inference_mode():
            return self._policy.sample(obs, self.policy_rng)


class RepeatedNoise:
    """Unit noise [N, A] that each of N environments holds for 1 to `longest` steps (FlashSAC, arXiv:2604.04539, 4).

    It knows nothing of episodes: what is held at the end of one is held at the start of the next.
    """

    def __init__(self, longest: int, action_dim: int, device: torch.device = CPU) -> None:
        chances = np.arange(1, longest + 1) ** -POWER
        self._reached = torch.from_numpy(np.cumsum(chances / chances.sum())[:-1]).to(device)  # P(at most n steps)
        self._action_dim, self._device = action_dim, device
        self._hold(0)

    def _hold(self, num_envs: int) -> None:
        self._noise = torch.zeros(num_envs, self._action_dim, device=self._device)
        self._left = torch.zeros(num_envs, dtype=torch.int64, device=self._device)

    def draw(self, num_envs: int, generator: torch.Generator) -> Tensor:
        """Returns the noise of the next step. -> [N, A].

        The generator gives as many numbers in every step, whichever of them are used.
        """
        if len(self._left) != num_envs:
            self._hold(num_envs)
        fresh = torch.randn(num_envs, self._action_dim, generator=generator, device=self._device)
        chance = torch.rand(num_envs, generator=generator, dtype=torch.float64, device=self._device)
        steps = 1 + torch.searchsorted(self._reached, chance, right=True)
        is_over = self._left == 0
        self._noise = torch.where(is_over[:, None], fresh, self._noise)
        self._left = torch.where(is_over, steps, self._left) - 1
        return self._noise

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the noise that is held, [N, A], and for how many further steps, [N]; before the first draw N is 0."""
        return {"held_noise": self._noise.cpu().numpy(), "held_steps": self._left.cpu().numpy()}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continues from what `arrays` returned."""
        self._noise = torch.from_numpy(arrays["held_noise"].copy()).to(self._device)
        self._left = torch.from_numpy(arrays["held_steps"].copy()).to(self._device)


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
