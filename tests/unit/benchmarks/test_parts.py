"""Every part of `make bench` runs, in its smallest form: type checks do not read benchmarks."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from benchmarks.journal import MORE_LEFT, Budget
from benchmarks.parts import __main__ as bench
from benchmarks.parts import (
    collector_step,
    environments,
    hand,
    handshake,
    memory,
    overhead,
    replay,
    saves,
    scaling,
    startup,
    storage,
    topologies,
    updates,
)
from benchmarks.parts.measurement import Measurement, measurements_of
from benchmarks.peers import race
from benchmarks.peers.contenders import Job
from benchmarks.results import all_entries, git
from offpolicy.config.overrides import load_config
from offpolicy.envs.vectorization import TASKS

SHORT = ("total_timesteps=600", "algo.learning_starts=500")
# What makes a part small: the module, and the constants that take other values in it.
SMALLEST: Mapping[str, tuple[ModuleType, dict[str, Any]]] = {
    "overhead": (overhead, {"PAIRS": 1, "ITERATIONS": 2, "SAMPLES_PER_ROUND": 1}),
    "replay": (replay, {"SIZES": {1000: 25.0}, "CALLS": 1}),
    "storage": (storage, {"CAPACITY": 1000, "FILL_ROWS": 500, "CALLS": 1}),
    "saves": (saves, {"CAPACITY": 100_000, "NEW_ROWS": (50_000, 100_000)}),
    "handshake": (handshake, {"CALLS": 1}),
    "updates": (updates, {"CALLS": 2, "FLOOR_CALLS": 1, "SAMPLES": 1}),
    "collector": (collector_step, {"STEPS": 2, "UPDATED_STEPS": 2, "MANY_STEPS": 2}),
    "environments": (
        environments,
        {"NUM_ENVS": (1, 2), "NUM_ENVS_OF_OTHERS": (2,), "ENV_STEPS": 4, "ENV_STEPS_OF_OTHERS": 4},
    ),
    "memory": (memory, {"OVERRIDES": (*memory.OVERRIDES, *SHORT)}),
    "startup": (startup, {}),
    "hand": (hand, {"NUM_HANDS": 2, "STEPS": 1}),
    "topologies": (
        topologies,
        {
            "COMMON": (*topologies.COMMON, *SHORT),
            "SETTLING": 10,
            "TOPOLOGIES": {"single_gpu, alternate": (), "multi_gpu, 1 rank": ("runner=multi_gpu",)},
        },
    ),
    "scaling": (scaling, {"SAMPLES": 1, "MOST_CALLS": 1, "RUN_S": 2.5}),
}
LONG = {"memory", "startup", "topologies"}  # whole runs


@pytest.fixture(scope="module")
def of_collector() -> list[dict[str, Any]]:
    """What the part `collector` measures in its smallest form, which takes half a minute."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in SMALLEST["collector"][1].items():
            monkeypatch.setattr(collector_step, name, value)
        return list(bench._measured(bench.PARTS["collector"]))


@pytest.mark.usefixtures("results_directory")
@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=[pytest.mark.slow] if part in LONG else [])
        for part in bench.PARTS
        if part != "collector"  # below
    ],
)
def test_every_part_runs_in_its_smallest_form(part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, constants = SMALLEST[part]
    for name, value in constants.items():
        monkeypatch.setattr(module, name, value, raising=False)
    monkeypatch.chdir(tmp_path)
    measured = list(bench.PARTS[part](1))
    assert measured
    assert all(isinstance(one, Measurement) and len(one.samples) > 0 for one in measured)


def test_the_collectors_step_is_measured_with_one_and_with_many_environments(
    of_collector: list[dict[str, Any]],
) -> None:
    found = {one["name"]: one["samples"] for one in of_collector}
    assert {"step", "64 environments, threads 1", "64 environments, threads 2"} <= found.keys()
    assert "64 environments, threads 2: env_step" in found
    assert all(len(samples) == 5 and min(samples) > 0 for samples in found.values())


def test_every_task_and_way_to_step_environments_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALLEST["environments"][1].items():
        monkeypatch.setattr(environments, name, value)
    found = {one.name: one.samples for one in environments.measure(1)}
    ways = ("sync", "async", "mujoco, threads 1", "mujoco, threads 1 / sync")
    two = ("mujoco, threads 2", "mujoco, threads 2 / sync")
    expected = {f"{n} x HalfCheetah-v5, {way}" for n in (1, 2) for way in ways}
    expected |= {f"2 x HalfCheetah-v5, {way}" for way in two}
    tasks = [constructor.rpartition(":")[2].removesuffix("Env") + "-v5" for constructor in TASKS]
    others = {task for task in tasks if task != "HalfCheetah-v5"}
    expected |= {f"2 x {task}, {way}" for task in others for way in (*ways, *two) if way != "async"}
    assert found.keys() == expected
    assert all(len(samples) == 3 and min(samples) > 0 for samples in found.values())


@pytest.mark.usefixtures("results_directory")
@pytest.mark.parametrize("axis", ["batch", "width"])
def test_a_point_of_updates_names_its_floor(axis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALLEST["scaling"][1].items():
        monkeypatch.setattr(scaling, name, value)
    rows, width = (8, 256) if axis == "batch" else (256, 8)
    update, floor, ratio = scaling.point(axis, 8, rounds=1)
    assert update.name == f"{axis}=8"
    assert floor.name == f"{axis}=8: floor, 16 products of {rows}x{width}x{width}"
    assert list(ratio.samples) == [update.samples[0] / floor.samples[0]]


@pytest.mark.slow
@pytest.mark.usefixtures("results_directory")
@pytest.mark.parametrize(("axis", "value"), [("environments", 4), ("ranks", 2)])
def test_a_point_of_runs_has_a_rate(axis: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "RUN_S", 4.0)
    monkeypatch.setattr(race, "SETTLE_S", 1.0)
    (one,) = scaling.point(axis, value, rounds=1)
    assert one.unit == "env steps/s"
    assert one.samples[0] > 1.0


@pytest.mark.parametrize(
    ("axis", "value"), [(axis, value) for axis in ("environments", "ranks") for value in scaling.POINTS[axis]]
)
def test_every_point_of_runs_is_a_configuration_that_a_run_takes(axis: str, value: int, tmp_path: Path) -> None:
    ours, settings = scaling.runs_at(axis, value)
    command = ours.command(Job(settings, 1.0, 1, tmp_path))
    config = load_config(command[command.index("train") + 1 :])
    assert config.runner.world_size * config.env.num_envs == value
    assert config.algo.utd == 1 / config.env.num_envs
    assert 250 < config.algo.batch_size <= 256


def test_scaling_has_the_points_that_are_promised() -> None:
    ends = {axis: (values[0], values[-1]) for axis, values in scaling.POINTS.items()}
    assert ends == {"environments": (1, 1024), "batch": (64, 32768), "width": (64, 1024), "ranks": (1, 4)}
    rounds_s = [task.expected_s for task in bench.tasks(["scaling"], rounds=1)]
    assert len(rounds_s) == sum(map(len, scaling.POINTS.values()))
    assert sum(rounds_s) < 900.0


def test_a_call_continues_the_one_before(results_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.results.commit", lambda: "abc")
    monkeypatch.setattr("benchmarks.journal.look", lambda cores: 0.0)
    found = lambda key, expected_s: [Measurement(key, "x", "ms", [1.0]).to_mapping()]  # noqa: E731
    monkeypatch.setattr(bench, "in_child", found)
    monkeypatch.setattr(bench, "EXPECTED_S", {"a": 1.0, "b": 1000.0})
    console = Console(file=io.StringIO(), width=100)
    assert bench.measure("ab", 1, Budget(100.0, wait_s=0.0), console, resume=True) == MORE_LEFT
    assert bench.measure("ab", 1, Budget(9999.0, wait_s=0.0), console, resume=True) == 0
    (entry,) = [entry for _, _, entry in all_entries(results_directory)]
    assert [one.part for one in measurements_of(entry)] == ["a", "b"]


def test_a_file_that_was_not_written_is_not_named(results_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.results.commit", lambda: "abc")
    console = Console(file=io.StringIO(), width=100)
    assert bench.measure(["hand"], 1, Budget(0.0, wait_s=0.0), console, resume=True) == MORE_LEFT
    assert "written" not in console.file.getvalue()  # type: ignore[attr-defined]
    assert not results_directory.exists()


def test_what_an_interrupted_part_leaves_is_ignored_by_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots: list[Path] = []
    monkeypatch.setattr(saves, "_saves", lambda root, *rest: iter([roots.append(root)]))
    monkeypatch.chdir(tmp_path)
    list(saves.measure(1))
    git("check-ignore", "--quiet", str(roots[0]))
    assert not roots[0].is_absolute()  # on the disk of the checkout


def test_every_field_of_the_control_is_in_memory() -> None:
    assert all(values.any() for values in replay.NumpyBuffer(10).fields.values())


def test_a_part_is_measured_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = bench.in_child("handshake", 60.0)
    assert [one["name"] for one in found] == ["round trip between two processes"]
    with pytest.raises(RuntimeError, match=r"^no_such_part: exit code 1\n"):
        bench.in_child("no_such_part", 60.0)
    monkeypatch.setattr(bench, "LATE_S", 0.0)
    with pytest.raises(RuntimeError, match=r"exit code none after 0 s"):
        bench.in_child("handshake", 0.01)


def test_two_quantities_of_one_name_are_refused() -> None:
    twice = lambda rounds: iter([Measurement("p", "x", "ms", [1.0])] * 2)  # noqa: E731
    with pytest.raises(ValueError, match="measured twice under one name: p: x"):
        bench._measured(twice)
