"""Unit noise of a policy that each environment holds for some steps (FlashSAC, arXiv:2604.04539, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

POWER = 2.0  # P(n) ~ n^-2: mostly one step, now and then many


class RepeatedNoise:
    """Draws noise [N, A] for N environments; each holds its own for n steps, P(n) ~ n^-2 for n from 1 to `longest`.

    It knows nothing of episodes: what is held at the end of one is held at the start of the next.
    """

    def __init__(self, longest: int, action_dim: int) -> None:
        chances = np.arange(1, longest + 1) ** -POWER
        self._reached = torch.from_numpy(np.cumsum(chances / chances.sum())[:-1])  # P(at most n steps)
        self._action_dim = action_dim
        self._noise, self._left = torch.zeros(0, action_dim), torch.zeros(0, dtype=torch.int64)

    def draw(self, num_envs: int, generator: torch.Generator) -> Tensor:
        """Returns the noise of the next step. -> [N, A].

        The generator gives as many numbers in every step, whichever of them are used.
        """
        if len(self._left) != num_envs:
            self._noise, self._left = torch.zeros(num_envs, self._action_dim), torch.zeros(num_envs, dtype=torch.int64)
        fresh = torch.randn(num_envs, self._action_dim, generator=generator)
        chance = torch.rand(num_envs, generator=generator, dtype=torch.float64)
        steps = 1 + torch.searchsorted(self._reached, chance, right=True)
        is_over = self._left == 0
        self._noise = torch.where(is_over[:, None], fresh, self._noise)
        self._left = torch.where(is_over, steps, self._left) - 1
        return self._noise

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the noise that is held, [N, A], and for how many further steps, [N]; before the first draw N is 0."""
        return {"held_noise": self._noise.numpy(), "held_steps": self._left.numpy()}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continues from what `arrays` returned."""
        self._noise = torch.from_numpy(arrays["held_noise"].copy())
        self._left = torch.from_numpy(arrays["held_steps"].copy())
