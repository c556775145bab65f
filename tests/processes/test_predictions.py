"""Predictions before a change, checked by the run after it, where both sides sleep; and of real runs, of themselves."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from offpolicy.model.throughput import bound_steps_per_sec
from tests.conftest import RunCli
from tests.processes.delay_plan import Plan, Stretch, run_plan
from tests.processes.test_delays import POINT

pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.alone, pytest.mark.promise("verdict-right")]

USUAL, LATE = 2000, 75  # iterations of a stretch: undelayed, delayed
# I by T: what a step of the collector and an update take longer, in ms.
RATIOS = {0.25: (40, 10), 0.5: (40, 20), 0.8: (40, 32), 1.25: (32, 40), 2.0: (20, 40), 4.0: (10, 40)}


STEP, UPDATE = "collector.env_step", "learner.train"


@pytest.mark.parametrize(("own", "other"), [(STEP, UPDATE), (UPDATE, STEP)])
def test_a_side_keeps_its_capacity_while_the_other_holds_it_up(tmp_path: Path, own: str, other: str) -> None:
    alone, held_up = run_plan(
        tmp_path, (POINT, "collect.mode=overlap"), [({own: 20.0}, 90), ({own: 20.0, other: 60.0}, 90)]
    )
    key = f"perf/{own.split('.')[0]}_capacity"
    assert len(held_up.records) >= 10
    for record in held_up.records:
        assert record[key] == pytest.approx(alone.median(key), rel=0.1)


def both_late(directory: Path, mode: str, delays_ms: list[tuple[float, float]]) -> list[Stretch]:
    """An undelayed stretch, then one for each pair of delays, of env step and update."""
    late: Plan = [({"collector.env_step": step, "learner.train": update}, LATE) for step, update in delays_ms]
    band = ("collect.band=2",) if mode == "free" else ()
    return run_plan(directory, (POINT, f"collect.mode={mode}", *band), [({}, USUAL), *late])


def capacities(usual: Stretch, step_ms: float, update_ms: float) -> tuple[float, float]:
    """I and T once both sides are late: what an env step costs each of them undelayed, and the delay."""
    collector_s, learner_s = (1.0 / usual.median(f"perf/{side}_capacity") for side in ("collector", "learner"))
    return 1.0 / (collector_s + step_ms / 1000.0), 1.0 / (learner_s + update_ms / 1000.0)


def require_predicted(usual: Stretch, late: Stretch, delays_ms: tuple[float, float], mode: str) -> None:
    """Before the change by the account of the run without it, after the change by the run's own."""
    thru, (collector, learner) = late.median("perf/steps_per_sec"), capacities(usual, *delays_ms)
    assert bound_steps_per_sec(collector, learner, mode) == pytest.approx(thru, rel=0.1)
    assert late.median("perf/predicted_steps_per_sec") == pytest.approx(thru, rel=0.1)
    if mode == "alternate":  # negative control: sides that take turns do not run at the slower one's pace
        assert min(collector, learner) != pytest.approx(thru, rel=0.1)


@pytest.fixture(scope="module", params=["alternate", "overlap", "free"])
def sweep(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Stretch]]:
    """A mode, and its stretches: undelayed, then by RATIOS."""
    mode: str = request.param
    return mode, both_late(tmp_path_factory.mktemp(mode), mode, list(RATIOS.values()))


@pytest.mark.parametrize("ratio", RATIOS)
def test_every_ratio_of_the_two_sides_gives_what_was_predicted(sweep: tuple[str, list[Stretch]], ratio: float) -> None:
    mode, (usual, *late) = sweep
    require_predicted(usual, late[list(RATIOS).index(ratio)], RATIOS[ratio], mode)


COMMON = (
    *("env=halfcheetah", "algo.learning_starts=300", "replay.capacity=20000", "eval.every=0", "eval.episodes=0"),
    *("checkpoint.every=0", "checkpoint.replay=false", "log.tensorboard=false", "log.panel=off", "log.every_s=1"),
)
SMALL = ("algo.hidden_dims=[64,64]", "algo.batch_size=64")
# Physics steps per env step, the update, the runner; the env steps of a run of 15 s on the fastest machine so far.
REAL = {
    "update": ("total_timesteps=5000",),
    "even": ("env.kwargs.frame_skip=1300", "total_timesteps=2400"),
    "env step": (*SMALL, "env.kwargs.frame_skip=2400", "total_timesteps=1500"),
    "two ranks": ("runner=multi_gpu", "runner.world_size=2", "total_timesteps=5000"),
    "packing": ("runner=double_buffer", "algo.batch_size=4096", "algo.hidden_dims=[8]", "total_timesteps=8000"),
    "async": ("env.vectorization=async", "env.num_envs=4", "algo.utd=0.25", "total_timesteps=16000"),
}


@pytest.mark.parametrize("mode", ["alternate", "overlap", "free"])
@pytest.mark.parametrize("case", REAL)
def test_a_real_run_does_what_its_records_and_its_summary_predict(
    run_cli: RunCli, tmp_path: Path, case: str, mode: str
) -> None:
    done = run_cli(["train", *COMMON, *REAL[case], f"collect.mode={mode}", "run_dir=run"], timeout=120.0)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    known = [record for record in records if record.get("perf/predicted_steps_per_sec")]
    steady = [record for record in known[2:-1] if record.get("perf/steps_per_sec")]  # begun and ended within none
    assert len(steady) >= 5
    errors = [abs(record["perf/predicted_steps_per_sec"] / record["perf/steps_per_sec"] - 1.0) for record in steady]
    assert statistics.fmean(errors) <= 0.05, errors
    assert max(errors) <= 0.12, errors
    rates = json.loads((tmp_path / "run" / "summary.json").read_text())["rates"]
    if mode != "free":  # there the learner makes the updates that it owes once the last env step is done
        assert rates["predicted_steps_per_sec"] == pytest.approx(rates["steps_per_sec"], rel=0.05)
    assert rates["prediction_error"] == pytest.approx(statistics.median(errors), abs=0.02)
