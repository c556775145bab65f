"""How the speed grows: with environments, with rows of a batch, with units of a layer, with learner ranks.

Environments and ranks are whole runs (SAC, HalfCheetah-v5): one update per vector step of all environments, and one
update per env step shared by all ranks. Batch and width are an update of SAC beside the floor of its products. Every
point is bounded in time: all of them take about five minutes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch

from benchmarks.children import use_cores
from benchmarks.parts.measurement import Measurement
from benchmarks.parts.updates import Case, as_in_a_learner, measurements
from benchmarks.peers.contenders import Ours
from benchmarks.peers.race import run
from benchmarks.peers.settings import Settings

PART = "scaling"
POINTS: Mapping[str, tuple[int, ...]] = {
    "environments": (1, 4, 16, 64, 256, 1024),
    "batch": (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    "width": (64, 128, 256, 512, 1024),
    "ranks": (1, 2, 3, 4),
}
EXPECTED_S = {"environments": 35.0, "batch": 5.0, "width": 5.0, "ranks": 30.0}  # of a point
RUN_S = 6.0  # measured of a run, after it has settled
THREADS = 2
SAMPLES = 5
SAMPLE_S = 0.25  # of an update, and of its floor, per sample
MOST_CALLS = 200


def point(axis: str, value: int, rounds: int) -> Iterator[Measurement]:
    """What one point measures."""
    measure: Callable[[int, int], Iterator[Measurement]] = MEASURES[axis]
    return measure(value, rounds)


def runs_at(axis: str, value: int) -> tuple[Ours, Settings]:
    """The runs of a point. Every rank takes an equal part of the batch, which has 256 rows at most."""
    if axis == "environments":
        return Ours("offpolicy", ("collect.mode=alternate",)), Settings.of("sac", value)
    settings = Settings.of("sac")
    settings = dataclasses.replace(settings, batch_size=settings.batch_size // value * value)
    return Ours("offpolicy", ("runner=multi_gpu", f"runner.world_size={value}")), settings


def _of_runs(axis: str, value: int, rounds: int) -> Iterator[Measurement]:
    ours, settings = runs_at(axis, value)
    repeats = [run("ours", ours, settings, RUN_S, number, use_cores(2)) for number in range(rounds)]
    failures = [repeat.failure for repeat in repeats if repeat.failure]
    if failures:
        raise RuntimeError(f"{axis}={value}: {failures[0]}")
    rates = [repeat.steps_per_sec for repeat in repeats if repeat.steps_per_sec is not None]
    yield Measurement(PART, f"{axis}={value}", "env steps/s", rates)


def _of_updates(axis: str, value: int, rounds: int) -> Iterator[Measurement]:
    with as_in_a_learner():
        torch.set_num_threads(THREADS)
        case = Case.of("sac", rows=value) if axis == "batch" else Case.of("sac", width=value)
        calls, floor_calls = _calls(case)
        samples = [case.sample(calls, floor_calls) for _ in range(SAMPLES * rounds)]
    yield from measurements(PART, f"{axis}={value}", case.describe_floor(), samples)


def _calls(case: Case) -> tuple[int, int]:
    """How many updates, and products of each kind, fill a sample; at least one."""
    case.sample(1, 1)  # warms up
    update_ms, floor_ms = case.sample(1, 1)
    return _that_fill(update_ms), _that_fill(2 * floor_ms / case.products.total)


def _that_fill(call_ms: float) -> int:
    return max(1, min(MOST_CALLS, int(1000 * SAMPLE_S / call_ms)))


MEASURES: Mapping[str, Callable[[int, int], Iterator[Measurement]]] = {
    "environments": partial(_of_runs, "environments"),
    "batch": partial(_of_updates, "batch"),
    "width": partial(_of_updates, "width"),
    "ranks": partial(_of_runs, "ranks"),
}
