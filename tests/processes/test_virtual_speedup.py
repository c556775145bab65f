"""What a faster phase would gain, measured in a run in which nothing is faster; then the phase is made faster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.processes.test_delays import SLOW_STEP, Run, train

pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.alone]

STEP_MS, UPDATE_MS = 30, 20
SLEEPS = (SLOW_STEP, "env.kwargs.reset_ms=0")
MEASURED = ("timing.virtual_speedup=true", "run_dir=run")
LENGTH = {"alternate": "total_timesteps=750", "overlap": "total_timesteps=1200"}


def done(directory: Path, mode: str, step_ms: float, update_ms: float) -> Run:
    """A run of these costs, undelayed."""
    directory.mkdir()
    words = (*SLEEPS, f"env.kwargs.step_ms={step_ms}", f"collect.mode={mode}", "total_timesteps=320")
    return train(directory, words, {"SLOW_UPDATE_MS": str(update_ms)})


def expected(measured: Run, phase: str, factor: float) -> float:
    """Env steps per second that the experiments expect of a phase that takes `factor` of its time."""
    section = measured.summary["virtual_speedup"]
    rows = [row for row in section["gains"] if row["phase"] == phase]
    costs = [1.0, *(1.0 / (1.0 + row["gain"]) for row in rows)]  # time per env step
    cost = np.interp(100.0 * (1.0 - factor), [0.0, *(row["percent"] for row in rows)], costs)
    return float(section["steps_per_sec"] / cost)


@pytest.mark.parametrize("mode", LENGTH)
def test_halved_phases_give_what_was_measured_before(tmp_path: Path, mode: str) -> None:
    words = (*SLEEPS, *MEASURED, f"env.kwargs.step_ms={STEP_MS}", f"collect.mode={mode}", LENGTH[mode])
    (tmp_path / "measured").mkdir()
    run = train(tmp_path / "measured", words, {"SLOW_UPDATE_MS": str(UPDATE_MS)})
    faster = {
        "env_step": done(tmp_path / "env_step", mode, STEP_MS / 2, UPDATE_MS),
        "train": done(tmp_path / "train", mode, STEP_MS, UPDATE_MS / 2),
    }
    for (phase, then), key in zip(faster.items(), ("collector_env_step", "learner_train"), strict=True):
        factor = then.median(f"timing/{key}_ms") / run.median(f"timing/{key}_ms")
        assert 0.4 <= factor <= 0.7, "what an update costs besides its delay is not halved"
        rate = then.summary["rates"]["steps_per_sec"]
        assert expected(run, phase, factor) == pytest.approx(rate, rel=0.05), phase
