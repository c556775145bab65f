"""From which checkpoint learners begin again, and which processes stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore
from offpolicy.collect.evaluations import Evaluations, read_scores
from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.launch.restart import keeps_others, newest_checkpoint, started_again
from offpolicy.training.worker import HostPlan, WorkerSpec
from offpolicy.types import EvalResult, SpaceSpec
from tests.hostile import rewrite

SPEC = SpaceSpec(4, 2, (-1.0, -1.0), (1.0, 1.0))
APPO: dict[str, Any] = {"algo": {"name": "appo"}, "runner": {"name": "appo"}}


STATE: dict[str, Any] = {
    "env_steps": 0, "last_eval_step": 0, "num_collectors": 1, "num_ranks": 1, "numbers": {"num_updates": 5},
    "start": [4, 0], "replay_first": [], "replay_end": [], "fingerprint": {},
}  # fmt: skip


def job_of(run_dir: Path, checkpoint: int | None = None, mode: str = "overlap") -> WorkerSpec:
    cfg = RunConfig.from_mapping({"collect": {"mode": mode}})
    plan = HostPlan(has_evaluator=False, learner_threads=1, collector_threads=1)
    return WorkerSpec(cfg, SPEC, plan, HostInfo(), str(run_dir), checkpoint or 0, checkpoint, 0)


def save(run_dir: Path, *steps: int) -> None:
    store = CheckpointStore(run_dir / CHECKPOINTS)
    for step in steps:
        with store.begin(step) as draft:
            draft.add_json("state", STATE | {"env_steps": step})


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({}, False),  # single_gpu: alternate
        ({"collect": {"mode": "overlap"}}, True),
        ({"collect": {"mode": "auto"}}, True),
        ({"runner": {"name": "double_buffer"}}, True),
        ({"runner": {"name": "double_buffer"}, "collect": {"mode": "alternate"}}, False),
        ({"runner": {"name": "multi_gpu", "world_size": 2}}, True),
        (APPO, False),
        (APPO | {"collect": {"mode": "overlap"}}, False),
    ],
)
def test_others_stay_where_their_rows_are_learnt_from_again_and_no_bits_are_promised(
    tree: dict[str, Any], expected: bool
) -> None:
    assert keeps_others(RunConfig.from_mapping(tree)) == expected


def test_learners_continue_from_the_newest_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 40, 80)
    job = job_of(tmp_path)
    again = started_again(job, newest_checkpoint(job)[0], 1)
    assert (again.start_step, again.checkpoint, again.keeps_rows) == (80, 80, True)
    assert not started_again(job_of(tmp_path, mode="alternate"), newest_checkpoint(job)[0], 1).keeps_rows


@pytest.mark.parametrize(("mode", "kept"), [("overlap", 19_999), ("alternate", 40)])
def test_evaluations_beyond_the_checkpoint_stay_where_env_steps_go_on(tmp_path: Path, mode: str, kept: int) -> None:
    """They were moved away, and nothing made them again: the collectors are beyond."""
    with CheckpointStore(tmp_path / CHECKPOINTS).begin(50) as draft:
        draft.add_json("state", STATE | {"env_steps": 50, "last_eval_step": 40})
    job = job_of(tmp_path, mode=mode)
    evaluations = Evaluations(tmp_path, job.kept_eval_step, job.cfg.stop, print)
    for steps in (40, 80, 19_999, 20_000):  # the last is the goal: that of another final policy
        evaluations.add(EvalResult(steps, 1.0, 0.0, 1.0, 3), {})
    evaluations.close()
    again = started_again(job, newest_checkpoint(job)[0], 1)
    assert (again.start_step, again.kept_eval_step) == (50, kept)
    Evaluations(tmp_path, again.kept_eval_step, job.cfg.stop, print).close()
    assert [score.env_steps for score in read_scores(tmp_path)] == [one for one in (40, 80, 19_999) if one <= kept]
    assert started_again(job, None, 1).kept_eval_step == (kept if mode == "overlap" else 0)


def test_a_checkpoint_that_a_start_would_refuse_is_passed_over_and_named(tmp_path: Path) -> None:
    save(tmp_path, 40, 80)
    rewrite(tmp_path / CHECKPOINTS / "step-000000000080", "state", lambda content: {**content, "num_ranks": [1]})
    checkpoint, rejected = newest_checkpoint(job_of(tmp_path))
    assert checkpoint is not None
    assert checkpoint.env_steps == 40
    assert len(rejected) == 1
    assert "num_ranks: got [1]" in rejected[0]
