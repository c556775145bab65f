"""Ten thousand rollouts between real processes, both sides jittered: none lost, none twice, none torn.

Every number of a rollout encodes its collector, its number among that collector's, and its time step.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from offpolicy.processes.control_page import ControlPage
from offpolicy.processes.handshake import LearnerGate
from offpolicy.processes.shared_memory import SharedBlock, WakeEvent
from offpolicy.replay.rollout_ring import RolloutLayout, RolloutRing
from offpolicy.replay.rollout_source import RolloutSource, RolloutSpec
from offpolicy.types import Float32, Rollouts

pytestmark = pytest.mark.mp
REPOSITORY = Path(__file__).resolve().parents[2]
LAYOUT = RolloutLayout(obs_dim=3, action_dim=1, length=4, num_envs=2)
NUM_COLLECTORS, NUM_SLOTS = 2, 2
STEPS_EACH = LAYOUT.length * LAYOUT.num_envs  # transitions of a rollout

COLLECTOR = """
import random, sys, time
import numpy as np
from offpolicy.collect.rollout_writer import RolloutWriter
from offpolicy.processes.control_page import CollectorWord, ControlPage, Turn
from offpolicy.processes.shared_memory import WakeEvent, SharedBlock
from offpolicy.types import PolicyOutput, StepOutcome
from tests.processes.test_rollouts import LAYOUT, NUM_COLLECTORS, NUM_SLOTS, coded
from offpolicy.replay.rollout_ring import RolloutRing

control_fd, ring_fd, wake_event, learner_wake, index = map(int, sys.argv[1:])
ring = RolloutRing(SharedBlock.attach(ring_fd).buffer, LAYOUT, NUM_SLOTS)
writer = RolloutWriter(ring, may_drop=False, newest_version=lambda: 0)
control = ControlPage(SharedBlock.attach(control_fd).buffer, 1, NUM_COLLECTORS)
rng, steps, vector_steps = random.Random(index), 0, 0
N = LAYOUT.num_envs
words = control.collectors[index]
words[CollectorWord.HAS_BEGUN] = 1
while True:
    words[CollectorWord.ENV_STEPS] = steps
    WakeEvent(learner_wake).set()
    while (turn := control.turn(index, lambda granted: writer.may_step(steps, granted))) is None:
        WakeEvent(wake_event).wait(0.5)
    if turn is not Turn.STEP:
        break
    obs, next_obs = coded(index, vector_steps), coded(index, vector_steps + 1)
    still = np.zeros(N, np.bool_)
    outcome = StepOutcome(next_obs, obs[:, 0], still, still, ~still, *np.full((2, N), np.nan, np.float32))
    steps += writer.write(obs, PolicyOutput(obs[:, :1], obs[:, 0], 0), outcome)
    vector_steps += 1
    if rng.random() < 0.02:
        time.sleep(rng.random() * 5e-4)
"""


def coded(collector: int, vector_step: int) -> Float32:
    """The observations [N, 3] of a collector's vector step."""
    numbers = np.arange(LAYOUT.num_envs)[:, None]
    return np.concatenate((0 * numbers + collector, 0 * numbers + vector_step, numbers), axis=1).astype(np.float32)


@contextmanager
def collectors() -> Iterator[tuple[LearnerGate, list[RolloutRing]]]:
    """Two processes that hand over rollouts as fast as they may."""
    control_block = SharedBlock.create("control", ControlPage.nbytes(1, NUM_COLLECTORS))
    blocks = [SharedBlock.create("rollouts", RolloutRing.nbytes(LAYOUT, NUM_SLOTS)) for _ in range(NUM_COLLECTORS)]
    wake_events, learner_wake = [WakeEvent.create() for _ in blocks], WakeEvent.create()
    control = ControlPage(control_block.buffer, 1, NUM_COLLECTORS)
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    processes = []
    for index, (block, wake_event) in enumerate(zip(blocks, wake_events, strict=True)):
        fds = (control_block.fd, block.fd, wake_event.fd, learner_wake.fd)
        words = [sys.executable, "-c", COLLECTOR, *map(str, (*fds, index))]
        processes.append(subprocess.Popen(words, pass_fds=fds, env=environ))
    try:
        gate = LearnerGate(control, 0, learner_wake, wake_events)
        yield gate, [RolloutRing(block.buffer, LAYOUT, NUM_SLOTS) for block in blocks]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def received(count: int, mode: str) -> list[tuple[int, int, bool]]:
    """Collector, number and soundness of `count` rollouts of each collector, in the order in which they arrive."""
    total = count * NUM_COLLECTORS * STEPS_EACH
    spec = RolloutSpec(LAYOUT, mode, max_lag=10, total=total, device=torch.device("cpu"))
    rng, found = random.Random(7), list[tuple[int, int, bool]]()
    with collectors() as (gate, rings):
        source = RolloutSource(spec, rings, gate, lambda: 0, lambda number: number)
        source.release()
        while True:
            source.wait_ready()
            if source.is_exhausted():
                return found
            found += identified(source.to_device(source.sample()))
            if rng.random() < 0.05:
                time.sleep(rng.random() * 1e-3)
            source.release()


def identified(batch: Rollouts) -> Iterator[tuple[int, int, bool]]:
    for first in range(0, batch.obs.shape[1], LAYOUT.num_envs):
        obs = batch.obs[:, first : first + LAYOUT.num_envs].numpy()
        collector, start = int(obs[0, 0, 0]), int(obs[0, 0, 1])
        expected = np.stack([coded(collector, start + step) for step in range(LAYOUT.length + 1)])
        rewards = batch.reward[:, first : first + LAYOUT.num_envs].numpy()
        is_sound = bool((obs == expected).all() and (rewards == collector).all() and start % LAYOUT.length == 0)
        yield collector, start // LAYOUT.length, is_sound


@pytest.mark.promise("no-torn-row")
@pytest.mark.parametrize(
    ("mode", "count"),
    [
        pytest.param("free", 5_000, marks=pytest.mark.slow),
        pytest.param("overlap", 1_000, marks=pytest.mark.slow),
        ("alternate", 500),
    ],
)
def test_every_rollout_is_learnt_from_once_and_whole(mode: str, count: int) -> None:
    found = received(count, mode)
    for collector in range(NUM_COLLECTORS):
        numbers = [number for which, number, _ in found if which == collector]
        assert numbers == list(range(len(numbers)))
    assert len(found) == count * NUM_COLLECTORS
    assert all(is_sound for _, _, is_sound in found)
