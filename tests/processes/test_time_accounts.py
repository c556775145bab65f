"""The accounts of the processes of one run, compared with each other: they close, and they agree."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from tests.processes.test_delays import POINT, SLOW_STEP, TWO_RANKS, Run, train

# One update per iteration; the last two are their defaults: scenes set them, but only SAC and TD3 know them.
ONCE = ("algo.epochs=1", "algo.num_minibatches=1", "algo.learning_starts=1000", "algo.batch_size=256")
ROLLOUTS = ("algo=appo", *ONCE, "env.num_envs=1", "rollout.length=10")
# A step of some milliseconds: what goes on between two phases of a collector takes up to 30 us, whatever its steps.
STEP = (SLOW_STEP, "env.kwargs.step_ms=3")
# An update of some milliseconds: waking a process takes 50 us, whatever else an iteration does.
LONG = (POINT, "algo.hidden_dims=[256,256]", "algo.batch_size=256")
RUNNERS = {
    "single_gpu": (*LONG, "collect.mode=alternate", "total_timesteps=800"),
    "overlap": (*LONG, "collect.mode=overlap", "total_timesteps=800"),
    "double_buffer": (POINT, "runner=double_buffer", "total_timesteps=4000"),
    "multi_gpu": (POINT, *TWO_RANKS, "total_timesteps=600"),
    "appo": (*STEP, *ROLLOUTS, "total_timesteps=2500"),
}
pytestmark = [
    pytest.mark.mp, pytest.mark.slow, pytest.mark.alone, pytest.mark.parametrize("run", RUNNERS, indirect=True),
]  # fmt: skip


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A whole run of a runner."""
    return train(tmp_path_factory.mktemp("accounts"), RUNNERS[request.param], {})


def test_next_to_nothing_is_outside_of_every_phase(run: Run) -> None:
    """In the median over the records: a process that loses its core for a while loses it anywhere."""
    assert statistics.median(share(record, "learner_other", "iter") for record in run.records) <= 0.02
    assert statistics.median(share(record, "collector_other", "collector_cycle") for record in run.records) <= 0.02
    for account in (run.summary["timing"]["learner"], run.summary["timing"]["collector"]):
        assert account["other_s"] >= 0.0


def test_a_side_waits_for_the_other_one_only_while_that_one_works(run: Run) -> None:
    learner_waits = [share(record, "learner_collector_wait", "iter") for record in run.records]
    collector_waits = [share(record, "collector_learner_wait", "collector_cycle") for record in run.records]
    beyond = [first + second - 1.0 for first, second in zip(learner_waits, collector_waits, strict=True)]
    assert statistics.median(beyond) <= 0.05
    if "mode: alternate" in (run.directory / "config.yaml").read_text():  # then one of them always waits
        assert statistics.median(beyond) >= -0.05


def share(record: dict[str, Any], phase: str, wall: str) -> float:
    """Of a phase in the wall of its process."""
    return float(record[f"timing/{phase}_ms"] / record[f"perf/{wall}_ms"])
