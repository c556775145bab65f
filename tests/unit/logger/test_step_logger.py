"""Iterations reported in seconds become an account that closes, and nothing is claimed that was not reported."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from offpolicy.config.sections import LogConfig
from offpolicy.errors import ConfigError
from offpolicy.logger.record import RunHeader
from offpolicy.logger.step_logger import PHASE_OF, StepLogger, open_step_logger

HEADER = RunHeader(algo="es", env_id="X-v0", seed=0, mode="overlap", total_timesteps=1000, num_envs=2, num_collectors=2)


def opened(path: Path, header: RunHeader = HEADER) -> StepLogger:
    return open_step_logger(path, header, LogConfig(every_s=600.0, tensorboard=False), {"population": 4})


def last_record(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    return record


def test_each_time_is_its_phase_and_the_rest_of_the_iteration_is_other(tmp_path: Path) -> None:
    seconds = {name: 0.001 * (index + 1) for index, name in enumerate(PHASE_OF)}
    with closing(opened(tmp_path / "run")) as logger:
        for iteration in (1, 2):
            logger.log_step(iteration, iteration_time=0.050, extra_info={"throughput_steps": 8}, **seconds)
        logger.finish_steps()
    record = last_record(tmp_path / "run")
    for index, phase in enumerate(PHASE_OF.values()):
        assert record[f"timing/learner_{phase}_ms"] == pytest.approx(index + 1)
    assert record["timing/learner_other_ms"] == pytest.approx(5.0)
    assert record["perf/iter_ms"] == pytest.approx(50.0)


def test_times_that_exceed_the_iteration_show_as_a_negative_rest(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "run")) as logger:
        logger.log_step(1, train_time=0.030, learner_incremental_h2d_time=0.010, iteration_time=0.035)
        logger.finish_steps()
    assert last_record(tmp_path / "run")["timing/learner_other_ms"] == pytest.approx(-5.0)


def test_the_collectors_times_are_of_a_vector_step_by_unilabs_names(tmp_path: Path) -> None:
    names = ("weight_sync_ms", "mlp_infer_ms", "env_step_ms", "replay_ms", "sync_coordination_ms")
    with closing(opened(tmp_path / "run")) as logger:
        logger.update_collector_timing({name: index + 1.0 for index, name in enumerate(names)})
        logger.log_step(1, train_time=0.1, extra_info={"throughput_steps": 8})
        logger.finish_steps()
    record = last_record(tmp_path / "run")
    phases = ("weight_apply", "action_select", "env_step", "replay_write", "learner_wait")
    assert [record[f"timing/collector_{phase}_ms"] for phase in phases] == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0])


def test_metrics_are_means_under_our_names_and_what_was_not_reported_is_absent(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "run")) as logger:
        for loss in (1.0, 3.0, float("nan")):
            logger.log_step(1, {"qf_loss": loss, "critic_grad_norm": 9.0}, 7.0, train_time=0.1)
        logger.log_collector(500, 40)
        logger.finish_steps(reason="three generations")
    record = last_record(tmp_path / "run")
    assert (record["train/critic_loss"], record["rollout/ep_rew_mean"]) == (2.0, 7.0)
    assert (record["env_steps"], record["replay/rows"]) == (500, 40)
    assert not {"train/critic_grad_norm", "cpu/learner_pct", "perf/policy_lag", "rollout/episodes"} & record.keys()
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["status"], summary["reason"], summary["updates"]) == ("completed", "three generations", 3)
    assert summary["bottleneck"]["advice"] == []


def test_a_header_without_a_goal_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="total_timesteps: got 0, allowed 1 or more"):
        opened(tmp_path / "run", RunHeader(algo="es", env_id="X", seed=0, mode="free", total_timesteps=0))
    assert not (tmp_path / "run").exists()
