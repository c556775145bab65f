"""The run header says what was decided for the user."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore
from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.launch.run_header import announce, open_run_logger
from offpolicy.logger.logger import OffPolicyLogger
from offpolicy.logger.provenance import Provenance
from offpolicy.training.worker import HostPlan, WorkerSpec
from offpolicy.types import EvalResult, SpaceSpec
from tests.fakes import shared_state

SPEC = SpaceSpec(4, 2, (-1.0, -1.0), (1.0, 1.0), max_episode_steps=100)
PLAN = HostPlan(has_evaluator=False, learner_threads=3, collector_threads=1)
CFG = RunConfig.from_mapping({"log": {"tensorboard": False}})


def header(
    *, spec: SpaceSpec = SPEC, host: HostInfo | None = None, has_evaluator: bool = False, start_step: int = 0,
    rejected: Any = (), **tree: Any,
) -> list[str]:  # fmt: skip
    plan = replace(PLAN, has_evaluator=has_evaluator)
    cfg = RunConfig.from_mapping(tree)
    job = WorkerSpec(cfg, spec, plan, host or HostInfo(), "runs/x", start_step, None, 0)
    lines: list[str] = []
    logger: Any = SimpleNamespace(view=SimpleNamespace(message=lines.append))
    run: Any = SimpleNamespace(path=Path("runs/x"), warnings=rejected, checkpoint=None)
    announce(logger, job, run)
    return lines


def test_a_plain_runs_directory_memory_and_threads() -> None:
    assert header(replay={"capacity": 4096}) == [
        "run directory: runs/x",
        "replay: 4,096 rows x 36 B = 0.1 MiB of shared memory",
        "single_gpu, alternate: threads learner 3, collector 1",
    ]


def test_updates_are_said_per_env_step_and_per_vector_step() -> None:
    wide = {"env": {"num_envs": 1024}, "algo": {"utd": 0.00390625}, "replay": {"capacity": 4096}}
    lines = header(**wide, collect={"process": "learner"})
    assert "updates: algo.utd=0.00390625 per env step, 4 per vector step of 1,024 environments" in lines
    assert "single_gpu, alternate: threads learner 3; it collects too" in lines


def test_bounds_beyond_what_has_an_effect_are_warned_of() -> None:
    (warning,) = [line for line in header(spec=replace(SPEC, saturates=True)) if line.startswith("warning")]
    assert warning.startswith("warning: env.action_bounds are wider than what has an effect")


def test_options_that_nothing_reads_are_warned_of_in_one_line() -> None:
    (warning,) = [line for line in header(algo={"clip": 0.3}, collect={"band": 3}) if line.startswith("warning")]
    assert warning == (
        "warning: nothing reads in this run: algo.clip=0.3 (read with algo=appo,hora),"
        " collect.band=3 (read with collect.mode=free)"
    )


def test_an_environment_without_a_time_limit_is_warned_of() -> None:
    (warning,) = [line for line in header(spec=replace(SPEC, max_episode_steps=None)) if line.startswith("warning")]
    assert warning.startswith("warning: Pendulum-v1 is registered without a time limit: ")
    assert "cut by an evaluation after 10,000 steps" in warning
    assert "env.kwargs.max_episode_steps=1000" in warning


def test_a_number_whose_changes_float32_does_not_hold_is_warned_of_once() -> None:
    (warning,) = [line for line in header(spec=replace(SPEC, coarse=("obs[1]",))) if line.startswith("warning")]
    assert warning.startswith("warning: obs[1] of Pendulum-v1 is so large that float32")


def test_what_is_special_has_a_line() -> None:
    ranks = {"algo": {"name": "appo"}, "runner": {"name": "appo", "world_size": 2}, "collect": {"num_collectors": 4}}
    host = HostInfo(index=1, num_hosts=2, job="j", attempt=2)
    lines: list[tuple[dict[str, Any], str]] = [
        ({"has_evaluator": True}, "evaluation: beside training, in a process with its own thread"),
        ({"env": {"id": "a:B-v0"}}, "evaluation: one episode after another; eval.num_envs=10 runs all at once"),
        ({"start_step": 4000}, "resuming at env step 4,000"),
        ({"rejected": ["step-9 is damaged"]}, "warning: step-9 is damaged"),
        ({"host": host, "runner": {"name": "multi_gpu"}}, "host 1 of 2, launched by torchrun as j, restart 2"),
        (
            {"runner": {"name": "multi_gpu", "world_size": 2}},
            "2 learner ranks average gradients: batch 128 per rank, 256 together",
        ),
        (ranks, "2 learner ranks average gradients: 2 collectors per rank"),
    ]
    for given, line in lines:
        assert line in header(**given)


def test_remote_hosts_have_a_line_with_what_is_taken_of_this_one_and_how_soon_a_loss_is_known() -> None:
    local = header(collect={"remote_hosts": 2}, replay={"capacity": 20_000})
    beside = "object store 200 MiB beside 1 MiB of replay"
    assert f"2 remote hosts of Ray at local: {beside}; a lost one is known within 2 s" in local
    (line,) = [
        line for line in header(collect={"remote_hosts": 1}, runner={"ray": "h:1"}) if " of Ray at h:1: " in line
    ]
    assert line.endswith("; a lost one is known within 20 s with Ray's default health checks")


def test_a_death_that_costs_more_than_a_minute_is_warned_of() -> None:
    replay = {"checkpoint": {"replay": False}, "algo": {"learning_starts": 2000}}
    costs: list[tuple[dict[str, Any], str]] = [
        ({"checkpoint": {"every_min": 0.0}}, "up to the work of 50,000 env steps is done again"),
        ({"checkpoint": {"every_min": 5.0, "every": 0}}, "up to 5 minutes of work is done again"),
        ({"checkpoint": {"every_min": 0.0, "every": 0}}, "up to all work is done again"),
        (replay, "the replay is lost (checkpoint.replay=false), and learning waits for 2,000 new env steps"),
    ]
    for given, cost in costs:
        assert header(**given)[-1] == f"if a process is killed, all begin again from the newest checkpoint: {cost}"


def opened(run: Path, job: WorkerSpec, saved_at: int | None) -> OffPolicyLogger:
    """The logger of a run on rollouts, closed again, that goes on from a checkpoint, or begins."""
    checkpoint = None
    if saved_at is not None:
        with CheckpointStore(run / CHECKPOINTS).begin(saved_at) as draft:
            draft.add_json("state", shared_state(saved_at, start=[0, 0]))
        checkpoint = CheckpointStore(run / CHECKPOINTS).at(saved_at)
    directory: Any = SimpleNamespace(path=run, checkpoint=checkpoint)
    logger = open_run_logger(job, directory, Provenance("offpolicy train", None, "abc", "2026", "host", None))
    logger.close()
    return logger


def test_records_beyond_the_checkpoint_are_superseded_also_at_step_0(tmp_path: Path) -> None:
    """A stop before the first step saves a checkpoint at 0; what a resume from it makes again was recorded twice.

    So is what a run makes again whose learner died before anything was saved.
    """
    cases: list[tuple[int | None, int, list[int]]] = [(None, 0, [50, 90]), (0, 0, []), (60, 0, [50]), (None, 1, [])]
    for index, (saved_at, restarts, kept) in enumerate(cases):
        run = tmp_path / str(index)
        run.mkdir()
        (run / "metrics.jsonl").write_text('{"env_steps": 50}\n{"env_steps": 90}\n')
        job = WorkerSpec(CFG, SPEC, PLAN, HostInfo(), str(run), saved_at or 0, saved_at, 0, restarts=restarts)
        opened(run, job, saved_at)
        lines = (run / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["env_steps"] for line in lines] == kept


def test_a_resumed_run_knows_the_last_evaluation_that_it_keeps_and_the_best_one(tmp_path: Path) -> None:
    kept, last = (EvalResult(step, reward, 0.5, 50.0, 3) for step, reward in ((20, -1.0), (40, -3.0)))
    lines = [json.dumps(result._asdict()) for result in (kept, last, last._replace(env_steps=60, mean_reward=9.0))]
    (tmp_path / "evaluations.jsonl").write_text("\n".join([*lines, "torn"]))
    job = WorkerSpec(CFG, SPEC, PLAN, HostInfo(), str(tmp_path), 50, 50, 0, last_eval_step=40)
    logger = opened(tmp_path, job, 50)
    assert logger.last_eval == last
    assert (logger.header.is_resumed, logger.header.best_eval) == (True, (-1.0, 20))
    assert logger.header.last_eval_step == 40
