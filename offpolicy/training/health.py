"""The health of the ranks: losses and norms of gradients are finite, and tensors are equal on all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from offpolicy.algos.learner import Learner
from offpolicy.config.schema import RunConfig
from offpolicy.distributed.exchange import checksum
from offpolicy.distributed.world import World
from offpolicy.errors import DesyncError, NumericsError
from offpolicy.types import Float64

NUM_FACTS = 3  # numbers of one rank's health


class HealthCheck:
    """Compares the ranks whenever they report or save."""

    def __init__(self, cfg: RunConfig, learner: Learner, world: World) -> None:
        self._cfg, self._learner, self._world = cfg, learner, world

    def facts(self) -> tuple[float, float, float]:
        """Returns if the learner diverged, if by this rank's numbers, and the checksum of its tensors."""
        has_diverged, has_peers = self._learner.has_diverged(), self._world.num_ranks > 1
        digest = checksum(list(self._learner.tensors().values())) if has_peers else 0.0
        return float(has_diverged), float(has_diverged and self._learner.is_origin()), digest

    def require(self, table: Float64) -> None:
        """Checks the facts of all ranks [R, 3]; the same on each of them. Raises `NumericsError`, `DesyncError`."""
        env_steps = self._world.env_steps
        if table[:, 0].any():
            step_sizes = "algo.lr" if self._cfg.algo.learns_from_rollouts else "algo.actor_lr or algo.critic_lr"
            where = f" on {_names(np.flatnonzero(table[:, 1]).tolist())}" if len(table) > 1 else ""
            raise NumericsError(
                f"a gradient's norm or a loss became NaN or Inf{where} before env step {env_steps}; the parameters were"
                f" kept from then on. Lower {step_sizes}, set algo.max_grad_norm, or check the reward's scale"
            )
        others = np.flatnonzero(table[:, 2] != table[0, 2]).tolist()
        if others:
            raise DesyncError(
                f"{_names(others)} no longer held the parameters, targets, moments and statistics of rank 0 at env step"
                f" {env_steps}: another torch, CPU or GPU model, or a bug"
            )

    def require_now(self) -> None:
        """Gathers the facts and checks them."""
        self.require(self._world.gather(self.facts()))


def _names(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
