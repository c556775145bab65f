"""The optimiser's step size as it changes during a run, without a look at the device."""

from __future__ import annotations

import torch
from torch import Tensor

from offpolicy.config.schedules import Ramp, ramp
from offpolicy.config.schema import AlgoConfig

KL_FACTOR = 1.5  # of one change
LIMITS = (1e-6, 1e-2)  # of the adaptive step size


class StepSize:
    """`constant`, or the schedule that `algo.lr` is; `linear`, to zero at the end of the run; or `kl_adaptive`.

    The last, rl_games' and rsl_rl's, holds the policy's change steady: where KL(old || new) of an epoch exceeds twice
    `target_kl` the step size is divided by 1.5, where it is less than half of it, multiplied.
    """

    def __init__(self, algo: AlgoConfig, device: torch.device) -> None:
        first = algo.value(algo.lr, 0)
        self.value = torch.tensor(first, dtype=torch.float32, device=device)  # []; what the optimiser reads
        self.is_adaptive = algo.lr_schedule == "kl_adaptive"
        self._is_linear = algo.lr_schedule == "linear"
        self._algo, self._first, self._target_kl = algo, first, algo.target_kl

    def follow_progress(self, progress: float, env_steps: int = 0) -> None:
        """Set the step size of the iteration that begins `env_steps` into the run, `progress` of the way to its end."""
        if self._is_linear:
            self.value.fill_(ramp(self._first, 0.0, progress))
        elif isinstance(self._algo.lr, Ramp):
            self.value.fill_(self._algo.value(self._algo.lr, env_steps))

    @torch.no_grad()
    def follow_kl(self, kl: Tensor) -> None:
        """Adapt the step size to the mean KL [] of an epoch; the same on all ranks if `kl` is."""
        if self.is_adaptive:
            factor = torch.where(kl > 2.0 * self._target_kl, 1.0 / KL_FACTOR, 1.0)
            factor = torch.where(kl < 0.5 * self._target_kl, KL_FACTOR, factor)
            self.value.mul_(factor).clamp_(*LIMITS)
