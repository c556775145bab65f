"""Writers, rings and source in one thread: no side waits for ever, and the run gets its env steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from offpolicy.collect.rollout_writer import RolloutWriter
from offpolicy.replay.rollout_ring import RolloutLayout, RolloutRing
from offpolicy.replay.rollout_source import RolloutSource, RolloutSpec
from offpolicy.types import PolicyOutput, StepOutcome

LAYOUT = RolloutLayout(obs_dim=1, action_dim=1, length=4, num_envs=2)
TOTAL = 400
UPDATE_TICKS = 6  # how long an update takes, in steps of the fastest collector


class Flow:
    """Three collectors, the last of which is three times as slow and whose environment ends every other episode."""

    have_all_begun = True

    def __init__(self, mode: str, *, num_slots: int, may_drop: bool, max_lag: int) -> None:
        self.granted = self.version = 0
        spec = RolloutSpec(LAYOUT, mode, max_lag, TOTAL, torch.device("cpu"))
        buffers = [memoryview(bytearray(RolloutRing.nbytes(LAYOUT, num_slots))) for _ in range(3)]
        rings = [RolloutRing(buffer, LAYOUT, num_slots) for buffer in buffers]
        self.source = RolloutSource(spec, rings, self, lambda: self.version, lambda own: own)
        self.writers = [RolloutWriter(ring, may_drop=may_drop, newest_version=lambda: self.version) for ring in rings]
        self.acting = [0] * len(rings)
        self.is_ready = False

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        self.is_ready = is_true()

    def grant_each(self, count: int) -> None:
        self.granted = count

    def wake_collectors(self) -> None: ...

    def step(self, index: int, tick: int) -> None:
        """One vector step of a collector, if it may."""
        writer = self.writers[index]
        if (index == 2 and tick % 3) or not writer.may_step(0, self.granted):
            return
        if writer.wants_fresh_policy(1):
            self.acting[index] = self.version
        obs, still = np.zeros((2, 1), np.float32), np.zeros(2, np.bool_)
        is_valid = np.array([True, index < 2 or tick % 2 == 0])
        outcome = StepOutcome(obs, np.zeros(2), still, still, is_valid, *np.full((2, 2), np.nan, np.float32))
        writer.write(obs, PolicyOutput(obs, np.zeros(2, np.float32), self.acting[index]), outcome)

    def run(self, ticks: int) -> bool:
        """True if the run comes to its end within so many ticks."""
        self.source.release()
        self.version, busy_until = 1, 0
        for tick in range(ticks):
            for index in range(len(self.writers)):
                self.step(index, tick)
            if tick < busy_until:
                continue
            self.source.wait_ready()
            if self.source.is_exhausted():
                return True
            if self.is_ready:
                self.source.sample()
                self.version, busy_until = self.version + 1, tick + UPDATE_TICKS
                self.source.release()
        return False


@pytest.mark.parametrize(
    ("mode", "num_slots", "may_drop", "max_lag"),
    list(itertools.product(("alternate", "overlap", "free"), (1, 2, 4), (False, True), (1, 64))),
)
def test_a_run_of_unequal_collectors_comes_to_its_end(mode: str, num_slots: int, may_drop: bool, max_lag: int) -> None:
    flow = Flow(mode, num_slots=num_slots, may_drop=may_drop, max_lag=max_lag)
    assert flow.run(ticks=20 * TOTAL)
    assert flow.source.samples >= TOTAL
    assert not any(
        writer.may_step(0, flow.granted) for writer in flow.writers
    )  # no rollout is collected that would not be used


def test_lockstep_modes_bound_the_age_of_the_weights() -> None:
    oldest = {}
    for mode in ("alternate", "overlap"):
        flow = Flow(mode, num_slots=2, may_drop=False, max_lag=64)
        assert flow.run(ticks=20 * TOTAL)
        oldest[mode] = int(np.flatnonzero(flow.source.rollouts.lags)[-1])
    assert oldest["alternate"] == 0
