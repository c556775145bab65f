"""Every part of `make bench` runs, in its smallest form: type checks do not read benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.parts import __main__ as bench
from benchmarks.parts import collector_step, overhead, replay, scaling, updates
from benchmarks.peers.contenders import Job
from offpolicy.config.overrides import load_config

# What makes a part small: the module, and the constants that take other values in it.
SMALLEST: Mapping[str, tuple[ModuleType, dict[str, Any]]] = {
    "overhead": (overhead, {"PAIRS": 1, "ITERATIONS": 2, "MANY_ITERATIONS": 2, "SAMPLES_PER_ROUND": 1}),
    "replay": (replay, {"SIZES": {1000: 25.0}, "CALLS": 1}),
    "updates": (updates, {"CALLS": 2, "FLOOR_CALLS": 1, "SAMPLES": 1}),
    "collector": (collector_step, {"CASES": {"2 environments": ("env.num_envs=2", "total_timesteps=1500")}}),
}
LONG = {"collector", "updates"}


@pytest.mark.usefixtures("results_directory")
@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[pytest.mark.slow] if part in LONG else []) for part in bench.PARTS]
)
def test_every_part_runs_in_its_smallest_form(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, constants = SMALLEST[part]
    for name, value in constants.items():
        monkeypatch.setattr(module, name, value)
    measured = list(bench.PARTS[part](1))
    assert measured
    assert all(len(one.samples) > 0 for one in measured)


def test_every_point_of_runs_is_a_configuration_that_a_run_takes(tmp_path: Path) -> None:
    points = [(axis, value) for axis in ("environments", "ranks") for value in scaling.POINTS[axis]]
    for axis, value in points:
        ours, settings = scaling.runs_at(axis, value)
        command = ours.command(Job(settings, 1.0, 1, tmp_path))
        config = load_config(command[command.index("train") + 1 :])
        assert config.runner.world_size * config.env.num_envs == value
        assert config.algo.utd == 1 / config.env.num_envs
