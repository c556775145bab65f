"""The plain source, and what all sources share: the rate limiter, the handshake, what the normalisers see."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.replay.prefetch_source import PackerTimers, PrefetchSource
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.replay_source import ReplaySource, SourceSpec
from offpolicy.replay.resident_source import ResidentSampler, ResidentSource
from offpolicy.replay.sampler import Sampler
from offpolicy.timing.device_timer import DeviceTimer, StreamSync
from offpolicy.timing.ledger import NullLedger
from tests.replay_scene import NUMBERED, Scene, append, layout_of, numbered_ring

LAYOUT = NUMBERED
LIMITER = RateLimiter(Fraction(1), start=10, start_updates=0, lead=0, credit=0, max_updates=4, total=1000)
SPEC = SourceSpec(LAYOUT, LIMITER, batch_size=8, device=torch.device("cpu"), normalize_obs=False)


class Clock:
    """The gate and the agreed number of env steps."""

    def __init__(self, env_steps: int) -> None:
        self.env_steps = env_steps
        self.waited: list[int] = []
        self.granted: list[int] = []

    def wait_for(self, env_steps: int) -> None:
        self.waited.append(env_steps)

    def grant(self, env_steps: int) -> None:
        self.granted.append(env_steps)


def make_source(*rings: ReplayRing, gate: Clock, steps: Clock | None = None, **spec: Any) -> ReplaySource:
    sampler = Sampler(rings, np.random.default_rng(0), guard=0)
    return ReplaySource(replace(SPEC, **spec), sampler, gate, steps or gate, updates=0)


def fresh(source: ReplaySource) -> list[list[float]] | None:
    fresh_obs = source.to_device(source.sample()).fresh_obs
    return None if fresh_obs is None else fresh_obs.tolist()


def test_an_iteration_takes_the_updates_that_are_due_and_counts_them() -> None:
    source = make_source(numbered_ring(64, 20), gate=(gate := Clock(13)))
    assert source.sample().shape == (3, 8, LAYOUT.width)
    assert (source.updates, source.samples) == (3, 24)
    source.release()
    assert gate.granted == [14]
    source.wait_ready()
    assert gate.waited == [14]


def test_decisions_go_by_the_agreed_steps_and_not_by_the_gate() -> None:
    agreed = Clock(12)
    source = make_source(numbered_ring(64, 20), gate=Clock(1000), steps=agreed)
    assert len(source.sample()) == 2
    source.updates = 990  # all that 1000 env steps call for
    assert not source.is_exhausted()
    agreed.env_steps = 1000
    assert source.is_exhausted()


def test_the_normaliser_sees_each_observation_of_its_rings_exactly_once() -> None:
    rings = [numbered_ring(64, 3), numbered_ring(64, 20), numbered_ring(64, 2)]
    source = make_source(*rings, gate=Clock(11), normalize_obs=True, fresh_rings=(0, 2))
    assert fresh(source) == [[0, 0], [1, 1], [2, 2], [0, 0], [1, 1]]
    append(rings[0], 1)
    append(rings[1], 5)
    assert fresh(source) == [[3, 3]]
    assert source.first_unseen_row == [4, 0, 2]
    of_no_ring = make_source(*rings, gate=Clock(11), normalize_obs=True, fresh_rings=())  # its rank still takes part
    assert fresh(of_no_ring) == []


def scaling_source(kind: str, scene: Scene) -> ReplaySource | PrefetchSource | ResidentSource:
    """A source of each kind whose rewards are scaled, over the ring of a scene."""
    rings, gate = [scene.ring], Clock(12)
    spec = replace(SPEC, layout=layout_of("float32"), fresh_rings=(0,), return_discount=0.5)
    sampler = Sampler(rings, np.random.default_rng(0), guard=0)
    if kind == "direct":
        return ReplaySource(spec, sampler, gate, gate, updates=0)
    if kind == "prefetch":
        return PrefetchSource(spec, sampler, gate, gate, 0, PackerTimers(NullLedger()))
    resident = ResidentSampler(rings, spec.device, 0, DeviceTimer(StreamSync(spec.device)))
    return ResidentSource(spec, resident, gate, gate, updates=0)


@pytest.mark.parametrize("kind", ["direct", "prefetch", "resident"])
def test_running_returns_take_every_new_row_once_and_go_on_after_a_resume(kind: str) -> None:
    scene = Scene(np.random.default_rng(3), 2, 1, 60, "float32")
    source, again, counts = scaling_source(kind, scene), scaling_source(kind, scene), list[int]()
    for _ in range(2):
        for _ in range(6):
            scene.step(0.0, 0.0)
        source.wait_batch()
        moments = source.to_device(source.sample()).fresh_returns
        assert moments is not None
        counts.append(int(moments[0]))
    assert counts == [12, 12]
    saved = json.loads(json.dumps(source.random_state()))
    again.set_random_state(saved)
    assert again.random_state()["returns"] == saved["returns"] != [[0.0, 0.0]]
    source.close()
    again.close()


def test_the_fields_are_those_of_the_batches_sampled_last_however_many_are_due() -> None:
    """Their views are kept; rows of before, or of another batch, would be learnt from unnoticed."""
    steps = Clock(12)
    source = make_source(numbered_ring(64, 20), gate=steps)
    for env_steps, num_due in ((12, 2), (13, 1), (17, 4), (18, 1)):
        steps.env_steps = env_steps
        rows = source.sample()
        fields = source.to_device(rows).updates
        assert len(fields) == len(rows) == num_due
        for batch, expected in zip(fields, rows.clone(), strict=True):
            by_hand = LAYOUT.split(expected)
            assert all(torch.equal(*pair) for pair in zip(batch, by_hand, strict=True))
