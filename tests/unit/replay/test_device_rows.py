"""Rows that are drawn on a device are those of the rings: transitions, and each as often as any other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from offpolicy.replay import resident_source
from offpolicy.replay.resident_source import ResidentSampler
from offpolicy.replay.sampler import UniformSampler
from offpolicy.timing.device_timer import StreamSync
from tests.replay_scene import Scene, rows_in

CPU = torch.device("cpu")


def scenes(n_step: int, dtype: str, num_rings: int = 2) -> list[Scene]:
    return [Scene(np.random.default_rng(seed), 2, n_step, 60, dtype) for seed in range(num_rings)]


def expected(many: list[Scene]) -> list[list[float]]:
    return sorted(row for scene in many for row in rows_in(scene.ring).tolist())


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("kind", ["resident", "uniform"])
def test_every_transition_is_drawn_as_often_as_any_other(
    monkeypatch: pytest.MonkeyPatch, kind: str, n_step: int, dtype: str
) -> None:
    monkeypatch.setattr(resident_source, "STAGING_ROWS", 7)
    many = scenes(n_step, dtype)
    resident = ResidentSampler([scene.ring for scene in many], CPU, 0, StreamSync(CPU))
    uniform = UniformSampler([scene.ring for scene in many], np.random.default_rng(0), guard=0)
    for _ in range(4):
        for scene in many:
            for _ in range(17):
                scene.step(0.3, 0.02)
        rows = expected(many)
        if kind == "resident":
            resident.refresh()
            drawn = resident.draw(40_000).numpy()
        else:
            drawn = np.empty((40_000, many[0].ring.layout.width), np.float32)
            uniform.fill(drawn)
        found, hits = np.unique(drawn[:, : many[0].ring.layout.next_obs.stop], axis=0, return_counts=True)
        assert found.tolist() == rows
        mean = 40_000 / len(rows)
        assert np.abs(hits - mean).max() < 6 * np.sqrt(mean)


def test_a_resident_copy_draws_the_same_whichever_blocks_it_was_loaded_in() -> None:
    many = scenes(1, "float32", 1)
    early = ResidentSampler([many[0].ring], CPU, 0, StreamSync(CPU))
    for _ in range(100):
        many[0].step(0.2, 0.0)
        early.refresh()
    late = ResidentSampler([many[0].ring], CPU, 0, StreamSync(CPU))
    late.refresh()
    one, two = (sampler.draw(500)[:, : many[0].ring.layout.next_obs.stop] for sampler in (early, late))
    assert torch.equal(one, two)
