"""The run header says what was decided for the user."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offpolicy.checkpoint.manifest import PLUGINS_KEY
from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.envs import vectorization
from offpolicy.launch.run_header import _plugin_lines, announce, open_run_logger
from offpolicy.logger.provenance import Provenance
from offpolicy.training.worker import HostPlan, WorkerSpec
from offpolicy.types import EvalResult, SpaceSpec

SPEC = SpaceSpec(4, 2, (-1.0, -1.0), (1.0, 1.0), max_episode_steps=100)


def header(
    *,
    spec: SpaceSpec = SPEC,
    host: HostInfo | None = None,
    has_evaluator: bool = False,
    start_step: int = 0,
    checkpoint: int | None = None,
    learner_restarts: int = 0,
    rejected: Any = (),
    **tree: Any,
) -> list[str]:
    plan = HostPlan(has_evaluator, learner_threads=3, collector_threads=1)
    cfg = RunConfig.from_mapping(tree)
    job = WorkerSpec(cfg, spec, plan, host or HostInfo(), "runs/x", start_step, checkpoint, 0)
    job = replace(job, learner_restarts=learner_restarts)
    lines: list[str] = []
    logger: Any = SimpleNamespace(message=lines.append)
    run: Any = SimpleNamespace(path=Path("runs/x"), warnings=rejected, checkpoint=None)
    announce(logger, job, run)
    return lines


def test_a_plain_run_names_directory_memory_and_threads() -> None:
    assert header(replay={"capacity": 4096}) == [
        "run directory: runs/x",
        "replay: 4,096 rows x 36 B = 0.1 MiB of shared memory",
        "single_gpu, alternate: threads learner 3, collector 1",
    ]


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({"id": "Ant-v5", "num_envs": 8, "vectorization": "mujoco"}, "8 x Ant-v5, env.vectorization=mujoco, one batch"),
        ({"num_envs": 2, "vectorization": "envpool"}, "2 x Pendulum-v1, env.vectorization=envpool, one pool"),
        ({"id": "Ant-v5", "num_envs": 8, "vectorization": "sync"}, "8 x Ant-v5, env.vectorization=sync"),
        ({"id": "Pendulum-v1", "num_envs": 8, "vectorization": "sync"}, "8 x Pendulum-v1, env.vectorization=sync"),
    ],
)
def test_the_way_that_many_environments_are_stepped_is_said(env: dict[str, Any], line: str) -> None:
    assert f"environments: {line}" in header(env=env)


def test_tasks_that_are_slower_than_they_could_be_are_said_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectorization, "has_batch", lambda: False)
    [line] = [line for line in header(env={"id": "Ant-v5", "num_envs": 4, "vectorization": "sync"}) if "Ant" in line]
    assert re.fullmatch(
        r"environments: 4 x Ant-v5, env.vectorization=sync, because mujoco [0-9.]+ has no mujoco.batch;"
        r" pip install 'mujoco>=3.17'",
        line,
    )


@pytest.mark.parametrize(
    ("checkpoint", "where"), [(None, "from the beginning"), (0, "at env step 0, the"), (1500, "at env step 1,500, the")]
)
def test_a_run_that_a_dead_learner_sent_back_says_where_to(checkpoint: int | None, where: str) -> None:
    [line] = [
        line for line in header(start_step=checkpoint or 0, checkpoint=checkpoint, learner_restarts=1) if where in line
    ]
    assert line.startswith("all processes start again")


def test_an_environment_without_a_time_limit_is_warned_of() -> None:
    (warning,) = [line for line in header(spec=replace(SPEC, max_episode_steps=None)) if line.startswith("warning")]
    assert warning.startswith("warning: Pendulum-v1 is registered without a time limit: ")
    assert "cut by an evaluation after 10,000 steps" in warning
    assert "env.kwargs.max_episode_steps=1000" in warning


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"has_evaluator": True}, "evaluation: beside training, in a process with a thread of its own"),
        ({"start_step": 4000}, "resuming at env step 4,000"),
        ({"rejected": ["step-9 is damaged"]}, "warning: step-9 is damaged"),
        (
            {"host": HostInfo(index=1, num_hosts=2, job="j", attempt=2), "runner": {"name": "multi_gpu"}},
            "host 1 of 2, launched by torchrun as j, restart 2",
        ),
        (
            {"runner": {"name": "multi_gpu", "world_size": 2}},
            "2 learner ranks average gradients: batch 128 per rank, 256 together",
        ),
        (
            {"runner": {"name": "multi_gpu", "world_size": 2, "sync": "parameters", "sync_every": 4}},
            "2 learner ranks average parameters every 4 iterations: batch 128 per rank, 256 together",
        ),
        (
            {
                "algo": {"name": "appo"},
                "runner": {"name": "appo", "world_size": 2},
                "collect": {"num_collectors": 4},
            },
            "2 learner ranks average gradients: 2 collectors per rank",
        ),
    ],
)
def test_what_is_special_has_a_line(given: dict[str, Any], line: str) -> None:
    assert line in header(**given)


def test_rollouts_are_announced_instead_of_a_replay() -> None:
    lines = header(
        algo={"name": "appo"}, runner={"name": "appo"}, rollout={"length": 16}, collect={"num_collectors": 2}
    )
    assert lines[1].startswith("rollouts: 1 of 16 steps x 1 environments = ")
    assert lines[1].endswith("MiB of shared memory in 2 rings, one per collector; block when full")


@pytest.mark.parametrize(
    ("saved_at", "learner_restarts", "kept"), [(None, 0, [50, 90]), (0, 0, []), (60, 0, [50]), (None, 1, [])]
)
def test_records_beyond_the_checkpoint_are_superseded_also_at_step_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved_at: int | None, learner_restarts: int, kept: list[int]
) -> None:
    """A stop before the first step saves a checkpoint at 0; what a resume from it makes again was recorded twice.

    So is what a run makes again whose learner died before anything was saved.
    """
    (tmp_path / "metrics.jsonl").write_text('{"env_steps": 50}\n{"env_steps": 90}\n')
    job = WorkerSpec(
        RunConfig.from_mapping({"log": {"tensorboard": False}}),
        SPEC,
        HostPlan(has_evaluator=False, learner_threads=1, collector_threads=1),
        HostInfo(),
        run_dir=str(tmp_path),
        start_step=saved_at or 0,
        checkpoint=saved_at,
        store_port=0,
        learner_restarts=learner_restarts,
    )
    checkpoint = None if saved_at is None else SimpleNamespace(env_steps=saved_at)
    monkeypatch.setattr("offpolicy.launch.run_header.SharedState.of", lambda _: SimpleNamespace(num_updates=None))
    run: Any = SimpleNamespace(path=tmp_path, checkpoint=checkpoint)
    open_run_logger(job, run, Provenance("offpolicy train", None, "abc", "2026", "host", None)).close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["env_steps"] for line in lines] == kept


def test_a_resumed_run_knows_the_last_evaluation_that_it_keeps_and_the_best_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, last = (EvalResult(step, reward, 0.5, 50.0, 3) for step, reward in ((20, -1.0), (40, -3.0)))
    lines = [json.dumps(result._asdict()) for result in (kept, last, last._replace(env_steps=60, mean_reward=9.0))]
    (tmp_path / "evaluations.jsonl").write_text("\n".join([*lines, "torn"]))
    plan = HostPlan(has_evaluator=False, learner_threads=1, collector_threads=1)
    cfg = RunConfig.from_mapping({"log": {"tensorboard": False}})
    job = WorkerSpec(cfg, SPEC, plan, HostInfo(), str(tmp_path), 50, 50, 0, last_eval_step=40)
    monkeypatch.setattr("offpolicy.launch.run_header.SharedState.of", lambda _: SimpleNamespace(num_updates=None))
    run: Any = SimpleNamespace(path=tmp_path, checkpoint=SimpleNamespace(env_steps=50))
    logger = open_run_logger(job, run, Provenance("offpolicy resume", None, "abc", "2026", "host", None))
    logger.close()
    assert logger.last_eval == last
    assert (logger.header.is_resumed, logger.header.best_eval) == (True, (-1.0, 20))
    assert logger.header.last_eval_step == 40


def test_the_records_say_how_many_ranks_all_hosts_have(tmp_path: Path) -> None:
    job = WorkerSpec(
        RunConfig.from_mapping({"log": {"tensorboard": False}, "runner": {"name": "multi_gpu", "world_size": 2}}),
        SPEC,
        HostPlan(has_evaluator=False, learner_threads=1, collector_threads=1),
        HostInfo(num_hosts=3),
        run_dir=str(tmp_path),
        start_step=0,
        checkpoint=None,
        store_port=0,
    )
    run: Any = SimpleNamespace(path=tmp_path, checkpoint=None)
    logger = open_run_logger(job, run, Provenance("offpolicy train", None, "abc", "2026", "host", None))
    logger.close()
    assert (logger.header.world_size, logger.header.num_hosts) == (6, 3)


def test_plugins_are_named_and_a_checkpoint_with_others_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = iter(["sinks good of plugs 1.3"])
    monkeypatch.setattr(
        "offpolicy.launch.run_header.plugins_of", lambda cfg: [SimpleNamespace(label=label) for label in labels]
    )
    saved = SimpleNamespace(as_mapping=lambda: {PLUGINS_KEY: ["sinks good of plugs 1.2"]})
    monkeypatch.setattr(
        "offpolicy.launch.run_header.state_fields", lambda checkpoint: SimpleNamespace(fields=lambda name: saved)
    )
    run: Any = SimpleNamespace(checkpoint="one")
    assert list(_plugin_lines(RunConfig(), run)) == [
        "plug-in: sinks good of plugs 1.3",
        "warning: plug-ins of the checkpoint: sinks good of plugs 1.2; now: sinks good of plugs 1.3",
    ]
