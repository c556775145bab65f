"""Acting: uniform random actions until learning starts, then the newest complete weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from offpolicy.nets.policy import Policy, flat_size, load_flat
from offpolicy.processes.mailbox import Mailbox
from offpolicy.seeding import generator, torch_seed
from offpolicy.types import Choice, Float32


class CollectorPolicy:
    """The collector's copy of the policy and its own random streams."""

    def __init__(
        self, policy: Policy, mailbox: Mailbox, *, action_dim: int, warmup_steps: int, seed: int, path: tuple[int, ...]
    ) -> None:
        """`seed` and `path` name its random streams: every collector has its own."""
        self._policy, self._mailbox = policy.eval(), mailbox
        self._action_dim, self._warmup_steps = action_dim, warmup_steps
        # The exploration noise after a number of own transitions, where it changes during the run.
        self.noise_at: Callable[[int], float] | None = None
        self._flat = np.zeros(flat_size(policy), dtype=np.float32)
        self.noise = torch.Generator()
        self.version = 0
        self.reseed(seed, *path)

    def reseed(self, seed: int, *path: int) -> None:
        """Start the random streams of `seed` anew; `path` tells one collector, or one start, from another."""
        self.uniform = generator(seed, "warmup_action", *path)
        self.noise.manual_seed(torch_seed(seed, "exploration", *path))

    def is_random(self, env_steps: int) -> bool:
        """Whether actions are still uniform, after `env_steps` own transitions."""
        return env_steps < self._warmup_steps

    def refresh(self) -> bool:
        """Take the newest published weights; False if there are none newer."""
        if self._mailbox.version <= self.version:
            return False
        self.version = self._mailbox.read(self._flat)
        load_flat(self._policy, self._flat)
        return True

    def act(self, obs: Float32, env_steps: int) -> Choice:
        """Exploratory actions [N, A] for obs [N, O]."""
        if self.is_random(env_steps):
            action = self.uniform.uniform(-1.0, 1.0, (len(obs), self._action_dim)).astype(np.float32)
            return Choice(action, None, self.version)
        if self.noise_at is not None:
            self._policy.explore_with(self.noise_at(env_steps))
        with torch.inference_mode():
            drawn, log_prob = self._policy.sample(torch.from_numpy(obs), self.noise)
        return Choice(drawn.numpy(), None if log_prob is None else log_prob.numpy(), self.version)
