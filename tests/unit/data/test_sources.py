"""Sampling from the ring: only intact rows, reproducibly, with their age."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

from offpolicy.data.layout import RowLayout
from offpolicy.data.pace import Pace
from offpolicy.data.ring import Ring
from offpolicy.data.sources import ReplaySource, SourceSpec, UniformSampler

LAYOUT = RowLayout(obs_dim=2, action_dim=1)


def make_ring(capacity: int, count: int) -> Ring:
    ring = Ring(memoryview(bytearray(Ring.nbytes(capacity, LAYOUT.width, 4))), LAYOUT.width, np.float32)
    for index in range(count):
        ring.append(np.full((1, LAYOUT.width), index, dtype=np.float32))
    return ring


class FixedGate:
    def __init__(self, env_steps: int) -> None:
        self.env_steps = env_steps
        self.waited: list[int] = []
        self.granted: list[int] = []

    def wait_for(self, env_steps: int) -> None:
        self.waited.append(env_steps)

    def grant(self, env_steps: int) -> None:
        self.granted.append(env_steps)


def make_source(ring: Ring, gate: FixedGate, *, utd: int = 1, normalize: bool = False) -> ReplaySource:
    pace = Pace(Fraction(utd), start=10, start_updates=0, lead=0, credit=0, max_updates=4, total=1000)
    spec = SourceSpec(LAYOUT, pace, 8, normalize, torch.device("cpu"))
    return ReplaySource(spec, ring, UniformSampler(ring, np.random.default_rng(0), guard=0), gate, updates=0)


def test_every_committed_row_is_drawn_and_no_other() -> None:
    ring = make_ring(capacity=16, count=40)
    out = np.empty((4000, LAYOUT.width), dtype=np.float32)
    UniformSampler(ring, np.random.default_rng(0), guard=0).fill(out)
    assert set(out[:, 0].astype(int)) == set(range(24, 40))
    assert (out == out[:, :1]).all()


def test_rows_about_to_be_recycled_are_left_out() -> None:
    ring = make_ring(capacity=64, count=100)
    out = np.empty((4000, LAYOUT.width), dtype=np.float32)
    UniformSampler(ring, np.random.default_rng(0), guard=8).fill(out)
    assert out[:, 0].min() == 36 + 8


def test_recycled_rows_are_drawn_again() -> None:
    ring = make_ring(capacity=16, count=16)
    sampler = UniformSampler(ring, np.random.default_rng(0), guard=0)
    draw = sampler._draw

    def draw_then_overwrite(count: int) -> np.ndarray:
        index = draw(count)
        if ring.committed == 16:  # the writer recycles half of the ring between the draw and the copy
            ring.append(np.arange(16, 24, dtype=np.float32)[:, None].repeat(LAYOUT.width, axis=1))
        return index

    sampler._draw = draw_then_overwrite  # type: ignore[method-assign]
    out = np.empty((512, LAYOUT.width), dtype=np.float32)
    sampler.fill(out)
    assert set(out[:, 0].astype(int)) == set(range(8, 24))


def test_the_age_is_counted_in_rows_written_since() -> None:
    ring = make_ring(capacity=16, count=1)
    sampler = UniformSampler(ring, np.random.default_rng(0), guard=0)
    sampler.fill(np.empty((5, LAYOUT.width), dtype=np.float32))
    assert (sampler.samples, sampler.age_sum) == (5, 5.0)


def test_an_iteration_takes_the_updates_that_are_due_and_counts_them() -> None:
    source = make_source(make_ring(64, 20), gate := FixedGate(13))
    assert source.sample().shape == (3, 8, LAYOUT.width)
    assert source.updates == 3
    source.release()
    assert gate.granted == [14]
    source.wait_ready()
    assert gate.waited == [14]


def test_batches_are_the_columns_of_the_rows() -> None:
    layout = RowLayout(obs_dim=2, action_dim=1)
    rows = torch.arange(layout.width * 2, dtype=torch.float32).reshape(2, -1)
    batch = layout.split(rows)
    assert batch.obs[0].tolist() == [0, 1]
    assert batch.next_obs[0].tolist() == [2, 3]
    assert batch.action[0].tolist() == [4]
    assert (batch.reward[0], batch.terminated[0], batch.discount[0]) == (5, 6, 8)


def test_the_normaliser_sees_each_observation_exactly_once() -> None:
    ring = make_ring(64, 20)
    source = make_source(ring, FixedGate(11), normalize=True)
    first = source.to_device(source.sample()).fresh_obs
    ring.append(np.full((2, LAYOUT.width), 77, dtype=np.float32))
    second = source.to_device(source.sample()).fresh_obs
    assert first is not None
    assert first[:, 0].tolist() == list(range(20))
    assert second is not None
    assert second.tolist() == [[77, 77], [77, 77]]
