"""The batches of the on-policy algorithms: whole rollouts, each used once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpolicy.processes.handshake import LearnerGate
from offpolicy.replay.rollout_ring import RolloutLayout, RolloutRing
from offpolicy.replay.staging import host_block, nbytes_text
from offpolicy.types import NO_ACCOUNT, NUM_LAGS, Account, Rollouts, RolloutTotals

# Rollouts beyond those learnt from, by collection mode; None: limited by the ring.
AHEAD: Mapping[str, int | None] = {"alternate": 0, "overlap": 1, "free": None}
NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """Configuration of a rollout source of one rank."""

    layout: RolloutLayout
    mode: str  # collection mode
    max_lag: int  # versions; older rollouts are not handed out
    total: int  # env steps of the run
    device: torch.device


class RolloutSource:
    """Takes as many rollouts per iteration as the rank has collectors, whichever are there first.

    The run ends once the ranks have learnt from its env steps. The collectors continue until then, so a rollout that is
    waited for always comes. `version` returns how often the weights were published; `total` sums a number over the
    ranks, a collective; `learnt` is the number of transitions this rank had learnt from before.
    """

    kind = "rollouts"

    def __init__(
        self,
        spec: RolloutSpec,
        rings: Sequence[RolloutRing],
        gate: LearnerGate,
        version: Callable[[], int],
        total: Callable[[float], float],
        learnt: int = 0,
    ) -> None:
        self._spec, self._rings, self._gate = spec, tuple(rings), gate
        self._version, self._total = version, total
        self._learnt_before = learnt
        self._learnt = 0  # transitions that all ranks had learnt from at the last release
        num_steps, num_envs, width = spec.layout.shape
        shape = num_steps, num_envs * len(self._rings), width
        self._staging = host_block(shape, torch.float32, spec.device)
        self._places = [rows.numpy() for rows in torch.split(self._staging, num_envs, dim=1)]
        self._in_turn = cycle(range(len(self._rings)))
        self._usable = [0] * len(self._rings)  # rollouts that wait and are not too old
        self._iterations = 0
        self._lags = np.zeros(NUM_LAGS, dtype=np.float64)
        self._too_old = 0
        self.samples = 0  # transitions handed out
        self.sample_age_sum = 0.0  # transitions are as old as their rollout: see the policy lag
        self.first_unseen_row: list[int] = []  # no rows are kept that a normaliser could see again

    @property
    def rollouts(self) -> RolloutTotals:
        """Counts of the rollouts so far."""
        return RolloutTotals(self._too_old, self._lags.copy())

    def wait_ready(self) -> None:
        """Blocks until there is a batch of rollouts, or none is needed, or the run is stopping.

        Where none is needed from the start on, as in a run that is resumed at its goal, the end is evaluated and saved
        next: it needs the env steps of all collectors, so they must have begun.
        """
        is_at_end = self.is_exhausted()
        self._gate.wait_until(lambda: self._gate.have_all_begun if is_at_end else self._has_batch())

    def is_exhausted(self) -> bool:
        """True if the ranks have learnt from as many transitions as the run has."""
        return self._learnt >= self._spec.total

    has_batch_wait = False

    def wait_batch(self) -> None:
        """Nothing is prefetched."""

    def sample(self) -> Tensor:
        """Copies the rollouts out of the ring, side by side, and frees their slots: [T + 1, B, W]."""
        for place in self._places:
            stamp = self._next_ring().take(place)
            self.samples += stamp.num_steps
            # Another rank may read the version a moment after a collector has acted with those weights.
            lag = max(self._version() - stamp.version, 0)
            self._lags[min(lag, NUM_LAGS - 1)] += 1
        self._iterations += 1
        self._gate.wake_collectors()
        return self._staging

    def to_device(self, rows: Tensor) -> Rollouts:
        """Copies the rollouts to the learner's device."""
        return self._spec.layout.split(rows.to(self._spec.device), self._learnt / self._spec.total, self._learnt)

    def release(self) -> None:
        """Grants every collector what the mode allows beyond the rollouts learnt from; nothing at the end."""
        self._learnt = int(self._total(self._learnt_before + self.samples))
        ahead = AHEAD[self._spec.mode]
        granted = NO_LIMIT if ahead is None else self._iterations + 1 + ahead
        self._gate.grant_each(0 if self.is_exhausted() else granted)

    def random_state(self) -> dict[str, Any]:
        """Returns how many transitions this rank has learnt from; there are no random numbers in it."""
        return {"learnt": self._learnt_before + self.samples}

    def set_random_state(self, state: dict[str, Any]) -> None:
        self._learnt_before = state["learnt"]

    def packer_account(self) -> Account:
        """Returns an empty account: nothing is packed ahead."""
        return NO_ACCOUNT

    def describe(self) -> str:
        size = nbytes_text(self._staging.nbytes)
        return f"rollouts: {len(self._rings)} x {self._spec.layout.length} steps per batch, {size} of staging"

    def close(self) -> None:
        """Nothing was started."""

    def _has_batch(self) -> bool:
        """Skips what is too old; True if enough remains."""
        oldest = self._version() - self._spec.max_lag
        for ring in self._rings:
            while ring.unread and ring.head.version < oldest:
                ring.skip()
                self._too_old += 1
                self._gate.wake_collectors()
        self._usable = [ring.unread for ring in self._rings]  # the oldest waits in front
        return sum(self._usable) >= len(self._rings)

    def _next_ring(self) -> RolloutRing:
        """Returns the next ring, in turn, that has a rollout for this batch."""
        for index in islice(self._in_turn, len(self._rings)):
            if self._usable[index]:
                self._usable[index] -= 1
                return self._rings[index]
        raise RuntimeError("no rollout is ready: `wait_ready` comes first")
