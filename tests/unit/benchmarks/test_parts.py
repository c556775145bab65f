"""The benchmarks of the collector and of its environments run: a part that nobody starts breaks unseen."""

from __future__ import annotations

import pytest

from benchmarks.parts import collector_step, environments
from benchmarks.parts.__main__ import PARTS


def test_the_collectors_step_is_measured_with_one_and_with_many_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector_step, "STEPS", 3)
    monkeypatch.setattr(collector_step, "MANY_STEPS", 3)
    found = {one.name: one.samples for one in PARTS["collector"](1)}
    assert {"step", "64 environments, threads 1", "64 environments, threads 2"} <= found.keys()
    assert all(len(samples) == 5 and min(samples) > 0 for samples in found.values())


def test_every_way_to_step_environments_is_measured() -> None:
    found = {one.name: one.samples for one in environments.measure(1, counts=(1, 2), env_steps=4)}
    ways = ("sync", "async", "mujoco, threads 1")
    assert found.keys() == {f"{n} x {way}" for n in (1, 2) for way in ways} | {"2 x mujoco, threads 2"}
    assert all(len(samples) == 3 and min(samples) > 0 for samples in found.values())
