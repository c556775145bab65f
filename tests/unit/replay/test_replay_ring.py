"""Every transition is found again, whole, though its next observation is stored with another one."""

from __future__ import annotations

import os
from collections import deque
from functools import partial

import numpy as np
import pytest

from offpolicy.collect.replay_writer import ReplayWriter
from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.replay.replay_ring import RELEASED_BYTES, ReplayRing
from offpolicy.replay.row_layout import RowLayout
from offpolicy.types import PolicyOutput, StepOutcome
from tests.interleaving import deaths
from tests.replay_scene import OBS_DIM, Scene, make_ring, rows_in


@pytest.mark.promise("final-observation")
@pytest.mark.parametrize("seed", range(24))
def test_every_transition_is_read_again_whatever_has_happened(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scene = Scene(
        rng, int(rng.integers(1, 5)), int(rng.choice([1, 1, 2, 3, 5])), int(rng.choice([7, 40, 1000])),
        str(rng.choice(["float32", "uint8"])),
    )  # fmt: skip
    chance_of_end, chance_of_nan = float(rng.choice([0.02, 0.2, 1.0])), float(rng.choice([0.0, 0.05]))
    for _ in range(150):
        scene.step(chance_of_end, chance_of_nan)
        event = rng.random()
        if event < 0.02:
            scene.renew()
        elif event < 0.04 and scene.ring.num_transitions:
            scene.resume(is_exact=bool(rng.integers(2)))
        scene.check()


def played(n_step: int, num_steps: int) -> Scene:
    scene = Scene(np.random.default_rng(n_step), 2, n_step, 6, "float32")
    for _ in range(num_steps):
        scene.step(0.2, 0.0)
    return scene


@pytest.mark.promise("no-torn-row")
@pytest.mark.parametrize("n_step", [1, 3])
def test_wherever_a_writer_dies_its_rows_are_there_or_not_and_the_others_are_whole(n_step: int) -> None:
    before, after = (rows_in(played(n_step, num_steps).ring).tolist() for num_steps in (9, 10))
    for run in deaths():
        scene = played(n_step, 9)
        run(partial(scene.step, 0.2, 0.0))
        found = rows_in(scene.ring).tolist()
        assert all(row in before or row in after for row in found)
        assert len(found) >= len(before) - 2


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_ring_without_room_for_short_episodes_keeps_fewer_and_counts_them(n_step: int) -> None:
    ring = make_ring(40, num_envs=2, n_step=n_step)
    writer, obs, unknown = ReplayWriter(ring, gamma=0.5, n_step=n_step), np.zeros((2, OBS_DIM), np.float32), np.zeros(2)
    writer.begin()
    output, is_over = PolicyOutput(np.zeros((2, 2), np.float32), None, 0), np.zeros(2, np.bool_)
    for step in range(200):
        nan, next_obs = unknown.astype(np.float32), np.full((2, OBS_DIM), step + 1, np.float32)
        ends = np.array([step % 2 == 0, step % 6 == 0]) & ~is_over
        writer.write(obs, output, StepOutcome(next_obs, unknown, ends, ~ends & ends, ~is_over, nan, nan))
        obs, is_over = next_obs, ends
        found = rows_in(ring)
        assert len(found) == ring.num_transitions
        assert (found[:, ring.layout.next_obs] > found[:, ring.layout.obs]).all()
    assert 20 < ring.num_transitions < 40


def numbered(number: int, num_envs: int) -> np.ndarray:
    return np.full((num_envs, 100), number, np.float32)


@pytest.mark.parametrize(("length", "slots_per_row"), [(1, 2.0), (1000, 1.02)])
def test_as_many_transitions_are_kept_however_short_episodes_are_and_no_more_memory(
    length: int, slots_per_row: float
) -> None:
    """Each process maps the whole room; the kernel has memory only for what is in use."""
    layout, most, num_envs = RowLayout(100, 1), 40_000, 500
    size = ReplayRing.nbytes_for(most, layout, num_envs, 1)
    block = SharedBlock.create("test-ring", size, ReplayRing.room_for(most, layout, num_envs, 1))
    ring = ReplayRing(block.buffer, layout, most, num_envs=num_envs)
    ring.begin()
    ring.write(np.empty((0, 1), np.float32), numbered(0, num_envs))
    tails = np.zeros((num_envs, 4), np.float32)
    most_bytes = 0
    for step in range(1, 800):
        tails.view(np.uint32)[:, -1] = 0 if step % (length + 1) == 0 else 4
        ring.write(tails, numbered(step, num_envs))
        most_bytes = max(most_bytes, 512 * os.fstat(block.fd).st_blocks)
    assert most <= ring.num_transitions < most + num_envs
    out = np.empty((ring.committed - ring.oldest, layout.width), np.float32)
    found = out[ring.read(np.arange(ring.oldest, ring.committed), out)]
    assert len(found) == ring.num_transitions
    first = ring.oldest // num_envs
    expected = [step for step in range(first, 799) if (step + 1) % (length + 1)]
    assert np.array_equal(found[::num_envs, 0], expected[-len(found) // num_envs :])
    assert (found[:, layout.next_obs] == found[:, :1] + 1).all()
    assert most_bytes <= max(size, slots_per_row * most * layout.nbytes) + 2 * RELEASED_BYTES


def test_a_fresh_observation_is_that_of_a_transition() -> None:
    scene, seen = Scene(np.random.default_rng(3), 2, 1, 50, "float32"), deque[list[float]]()
    for _ in range(10):
        scene.step(0.3, 0.0)
    seen.extend(row.obs.tolist() for row in scene.rows)
    assert scene.ring.read_obs(0, scene.ring.committed).tolist() == list(seen)


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_smaller_ring_takes_the_newest_of_the_saved_transitions(n_step: int) -> None:
    scene = Scene(np.random.default_rng(4), 2, n_step, 60, "float32")
    for _ in range(40):
        scene.step(0.2, 0.0)
    before, saved = rows_in(scene.ring), scene.ring.read_range(0, scene.ring.committed)
    for most in (20, 8):
        ring = make_ring(most, num_envs=2, n_step=n_step)
        ring.restore_slots(0, np.array_split(saved, [len(saved) // 4 * 2]), scene.ring.copy_open())
        found = rows_in(ring)
        assert most / 2 < len(found) == ring.num_transitions <= most + 2
        assert np.array_equal(found, before[-len(found) :])
