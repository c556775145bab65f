"""What `runner=double_buffer` brings on a CPU: packing beside training, where packing costs as much as training.

No batch of this project does: the rows of the smallest update are packed in less than a tenth of its time. So a batch
takes real work besides, as that of rows that are kept compressed does.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests.processes.test_delays import POINT, Run, train

pytestmark = [pytest.mark.mp, pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(600)]
UPDATE = (POINT, "algo.hidden_dims=[256,256]", "algo.batch_size=256", "total_timesteps=1000", "collect.mode=overlap")
ROUNDS = 3
LEAST_GAIN = 1.3  # of env steps per second; 2 if the two threads never wait for each other
TRIED = 10  # megabytes per batch of the run that says how many take as long as an update


def phases(run: Run) -> tuple[float, float]:
    """Milliseconds of packing a batch, and of the update, which finds its caches cold after it."""
    return run.median("timing/learner_replay_sample_ms"), run.median("timing/learner_train_ms")


def test_packing_that_costs_as_much_as_training_is_hidden_behind_it(tmp_path: Path) -> None:
    """Runs in turns, ratios of neighbours in time."""
    ratios = []
    for number in range(ROUNDS):
        directory = tmp_path / str(number)
        for name in ("tried", "single", "double"):
            (directory / name).mkdir(parents=True)
        packed, trained = phases(train(directory / "tried", UPDATE, {"UNPACK_TIMES": str(TRIED)}))
        unpack = {"UNPACK_TIMES": str(round(TRIED * trained / packed))}
        single = train(directory / "single", UPDATE, unpack)
        double = train(directory / "double", (*UPDATE, "runner=double_buffer"), unpack)
        packed, trained = phases(single)
        assert 0.75 < packed / trained < 1.33  # else the run says nothing about equal costs
        rates = (run.summary["rates"]["steps_per_sec"] for run in (double, single))
        ratios.append(next(rates) / next(rates))
    assert statistics.median(ratios) >= LEAST_GAIN, ratios
