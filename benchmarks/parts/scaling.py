"""How the speed grows: with environments, with rows of a batch, with units of a layer, with learner ranks.

Environments and ranks are whole runs (SAC, HalfCheetah-v5). Batch and width are an update beside its floor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import torch

from benchmarks.children import use_cores
from benchmarks.measurement import Measurement
from benchmarks.parts.updates import Case, as_in_a_learner
from benchmarks.peers.contenders import Ours, Settings
from benchmarks.peers.race import run

PART = "scaling"
POINTS: Mapping[str, tuple[int, ...]] = {
    "environments": (1, 4, 16, 64, 256, 1024),
    "batch": (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    "width": (64, 128, 256, 512, 1024),
    "ranks": (1, 2, 3, 4),
}
RUN_S = 6.0  # measured of a run, after it has settled
THREADS = 2
SAMPLES = 5
SAMPLE_S = 0.25  # of an update, and of its floor, per sample
MOST_CALLS = 200


def point(axis: str, value: int) -> Iterator[Measurement]:
    """Measures one point."""
    if axis in ("environments", "ranks"):
        ours, settings = runs_at(axis, value)
        rate = run(ours, settings, RUN_S, 1, use_cores(2))["steps_per_sec"]
        yield Measurement(PART, f"{axis}={value}", "env steps/s", [rate])
        return
    with as_in_a_learner():
        torch.set_num_threads(THREADS)
        case = Case.of("sac", rows=value) if axis == "batch" else Case.of("sac", width=value)
        case.sample(1, 1)  # warms up
        calls = max(1, min(MOST_CALLS, int(1000 * SAMPLE_S / case.sample(1, 1)[0])))
        samples = [case.sample(calls, 2 * calls) for _ in range(SAMPLES)]
    yield from case.measurements(PART, f"{axis}={value}", samples)


def runs_at(axis: str, value: int) -> tuple[Ours, Settings]:
    """Returns the run of a point. Every rank takes an equal part of the batch, which has 256 rows at most."""
    if axis == "environments":
        return Ours("offpolicy", ("collect.mode=alternate",)), Settings.of("sac", value)
    settings = Settings.of("sac")
    settings = dataclasses.replace(settings, batch_size=settings.batch_size // value * value)
    return Ours("offpolicy", ("runner=multi_gpu", f"runner.world_size={value}")), settings
