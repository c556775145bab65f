"""A Python thread that computes in the learner's process holds up its update, and the record says so."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from tests.processes.test_delays import POINT, Run, train

pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.alone]


def mean(run: Run, key: str) -> float:
    """Over the records in which enough was sampled: a hold of the interpreter is longer than an update, so it is in
    few of them.
    """
    return statistics.fmean(record[key] for record in run.records if key in record)


def blocked_pct(run: Run) -> float:
    """The share that the learner is blocked of its updates, the time that others have its core left out."""
    shares = run.summary["timing"]["learner"]["states"]["train"]
    return float(100.0 * shares["blocked"] / (shares["blocked"] + shares["running"]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Twice the same run, once with such a thread."""
    told: dict[str, dict[str, Any]] = {"alone": {}, "beside": {"BURN_MS": "20"}}
    steps = {"alone": "total_timesteps=2400", "beside": "total_timesteps=1600"}
    return {
        name: train(tmp_path_factory.mktemp(name), (POINT, "collect.mode=overlap", steps[name]), told[name])
        for name in told
    }


def test_the_interpreter_held_by_another_thread_is_blocked_time_of_train(runs: dict[str, Run]) -> None:
    assert blocked_pct(runs["alone"]) < 10.0
    assert blocked_pct(runs["beside"]) > 25.0
    assert mean(runs["beside"], "blocked/learner_train_pct") > 3 * mean(runs["alone"], "blocked/learner_train_pct")


def test_the_verdict_names_it_and_the_cores_show_whose_it_is(runs: dict[str, Run]) -> None:
    assert runs["beside"].summary["bottleneck"]["reason"].count("waits for another thread") == 1
    assert runs["alone"].summary["bottleneck"]["reason"].count("waits for another thread") == 0
    assert mean(runs["beside"], "cores/learner_other_ms_per_s") > 300.0
    assert mean(runs["alone"], "cores/learner_other_ms_per_s") < 50.0
