"""The copy of the rings on the device: what it shows is what the rings hold, and never anything else."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.errors import ConfigError
from offpolicy.replay import resident_source as resident
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.replay_source import SourceSpec
from offpolicy.replay.resident_source import ResidentSampler, ResidentSource
from offpolicy.timing.device_timer import DeviceTimer, StreamSync
from tests.on_device import waits_refused
from tests.replay_scene import NUMBERED, Scene, append, numbered_ring, numbers_of, rows_in

LAYOUT, WIDTH = NUMBERED, NUMBERED.width
CPU = torch.device("cpu")
LIMITER = RateLimiter(Fraction(1), start=10, start_updates=0, lead=0, credit=0, max_updates=4, total=1000)
gpu = pytest.param(
    torch.device("cuda", 0),
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    id="cuda",
)


def make_sampler(*rings: ReplayRing, device: torch.device = CPU, seed: int = 0) -> ResidentSampler:
    return ResidentSampler(rings, device, seed, DeviceTimer(StreamSync(device)))


def refreshed(sampler: ResidentSampler, count: int = 2000) -> list[int]:
    """The rows that are drawn after a refresh; each must be whole."""
    sampler.refresh()
    return numbers_of(sampler.draw(1, count)[0].cpu().numpy()).tolist()


@pytest.mark.parametrize("device", [CPU, gpu])
def test_it_shows_exactly_what_the_ring_holds_before_and_after_the_wrap(device: torch.device) -> None:
    ring = numbered_ring(16, 3)
    sampler = make_sampler(ring, device=device)
    assert set(refreshed(sampler)) == set(range(3))
    for count in (7, 1, 0, 12, 50):  # the last is more than a round
        append(ring, count)
        assert set(refreshed(sampler)) == set(range(ring.oldest, ring.committed))
        assert sampler.num_rows == ring.committed - ring.oldest


def test_a_row_recycled_while_it_was_staged_is_left_out() -> None:
    class LateWriter(ReplayRing):
        pending = 0

        def spans(self, start: int, stop: int) -> list[np.ndarray]:
            views, pending = super().spans(start, stop), self.pending
            self.pending = 0
            append(self, pending)
            return views

    ring = numbered_ring(16, 16, LateWriter)
    sampler = make_sampler(ring)
    ring.pending = 6  # rows 0 to 5 are overwritten between the look at the ring and the copy
    assert set(refreshed(sampler)) == set(range(6, 16))
    assert set(refreshed(sampler)) == set(range(6, 22))


def test_the_age_is_what_was_written_to_all_rings_since() -> None:
    sampler = make_sampler(numbered_ring(16, 5), numbered_ring(16, 5))
    drawn = np.array(refreshed(sampler, 100))
    assert int(sampler.age_sum) == 2 * (5 - drawn).sum()


class Clock:
    env_steps = 12

    def wait_for(self, env_steps: int) -> None: ...
    def grant(self, env_steps: int) -> None: ...


def make_source(*rings: ReplayRing, device: torch.device = CPU, **options: Any) -> ResidentSource:
    spec = SourceSpec(LAYOUT, LIMITER, 8, device, normalize_obs=True, fresh_rings=(0,))
    return ResidentSource(spec, make_sampler(*rings, device=device, **options), Clock(), Clock(), updates=0)


@pytest.mark.parametrize("device", [CPU, gpu])
def test_an_iteration_takes_the_updates_that_are_due_and_a_resumed_source_goes_on(device: torch.device) -> None:
    ring = numbered_ring(16, 12)
    source = make_source(ring, device=device)
    sampled = source.sample()
    batches = source.to_device(sampled)
    assert sampled.shape == (2, 8, WIDTH)
    assert sampled.device == device
    assert (source.updates, source.samples) == (2, 16)
    assert source.sample_age_sum == float((12 - sampled[..., 0]).sum())
    assert torch.equal(batches.updates[1].obs, sampled[1, :, :2])
    assert batches.fresh_obs is not None
    assert batches.fresh_obs[:, 0].tolist() == list(range(12))
    resumed = make_source(ring, device=device, seed=99)
    resumed.set_random_state(json.loads(json.dumps(source.random_state())))
    resumed.updates = 2
    assert torch.equal(source.sample(), resumed.sample())


def test_a_copy_that_does_not_fit_is_refused_with_its_size() -> None:
    class Huge:
        copied_rows, width = 10**14, WIDTH

    with pytest.raises(ConfigError, match=r"replay\.source=resident: the copy .* needs 4800000 GB on cpu; lower"):
        make_sampler(Huge())  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_rings", [1, 4])
def test_sampling_on_the_device_never_makes_the_host_wait(num_rings: int) -> None:
    device = torch.device("cuda", 0)
    rings = [numbered_ring(1000, 500) for _ in range(num_rings)]
    sampler = make_sampler(*rings, device=device)
    refreshed(sampler)
    for ring in rings:
        append(ring, 3)
    torch.cuda.synchronize(device)
    with waits_refused():
        sampler.refresh()
        sampler.draw(1, 256)


def scenes(n_step: int, dtype: str, num_rings: int = 2) -> list[Scene]:
    return [Scene(np.random.default_rng(seed), 2, n_step, 60, dtype) for seed in range(num_rings)]


def expected(many: list[Scene]) -> list[list[float]]:
    return sorted(row for scene in many for row in rows_in(scene.ring).tolist())


@pytest.mark.parametrize(("dtype", "n_step"), [("float32", 3), ("uint8", 1)])
def test_every_transition_is_drawn_as_often_as_any_other(
    monkeypatch: pytest.MonkeyPatch, n_step: int, dtype: str
) -> None:
    monkeypatch.setattr(resident, "STAGING_ROWS", 7)
    many = scenes(n_step, dtype)
    sampler = ResidentSampler([scene.ring for scene in many], CPU, 0, DeviceTimer(StreamSync(CPU)))
    for _ in range(4):
        for scene in many:
            for _ in range(17):
                scene.step(0.01, 0.0)
        rows = expected(many)
        sampler.refresh()
        drawn = sampler.draw(1, 20_000)[0].numpy()
        found, hits = np.unique(drawn[:, : many[0].ring.layout.next_obs.stop], axis=0, return_counts=True)
        assert found.tolist() == rows
        mean = 20_000 / len(rows)
        assert np.abs(hits - mean).max() < 6 * np.sqrt(mean)


def test_where_episodes_are_short_a_copy_holds_the_newest_transitions() -> None:
    (scene,) = scenes(1, "float32", num_rings=1)
    sampler = ResidentSampler([scene.ring], CPU, 0, DeviceTimer(StreamSync(CPU)))
    for _ in range(100):
        scene.step(0.5, 0.0)
    sampler.refresh()
    rows = rows_in(scene.ring)
    found = np.unique(sampler.draw(1, 20_000)[0].numpy()[:, : rows.shape[1]], axis=0)
    assert 30 <= len(found) < len(rows)
    assert found.tolist() == sorted(rows[-len(found) :].tolist())
