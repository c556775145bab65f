"""What is refused with the ranks of all hosts in view, before a host meets the others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore
from offpolicy.config.overrides import load_config
from offpolicy.config.run_files import read_config, write_config
from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.distributed.rendezvous import Proposal, RendezvousResult
from offpolicy.errors import ConfigError
from offpolicy.launch import hosts
from offpolicy.launch.run_lock import parent_identity
from offpolicy.plugins import SINKS
from offpolicy.runs import LOCK
from offpolicy.types import SpaceSpec
from tests.fakes import shared_state
from tests.packages import make_package
from tests.unit.config.test_extensions import TEXT as SINK


@pytest.fixture(autouse=True)
def _launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of four hosts, as `torchrun` starts it."""
    agent = {"RUN_ID": "a", "USE_AGENT_STORE": "True"}
    for name, value in agent.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    launched = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(hosts, "die_with_parent", lambda _: None)


def config(share: float) -> RunConfig:
    return RunConfig.from_mapping(
        {
            "algo": {"batch_size": 16},
            "replay": {"demos": "a.npz", "demo_share": share},
            "runner": {"name": "multi_gpu", "world_size": 1, "interface": "lo"},
            "run_dir": "run",
            "device": "cpu",
        }
    )


@pytest.mark.parametrize("share", [0.1, 0.9])  # 2 and 14 of the 16 rows of a host on its own; 0 and 4 of 4
def test_a_share_that_leaves_a_rank_of_all_hosts_one_kind_of_rows_is_refused(share: float) -> None:
    with pytest.raises(ConfigError) as caught:
        hosts.follow_launcher(config(share))
    assert caught.value.problems == (
        f"replay.demo_share: got {share}, allowed a share that is at least one of the 4 rows of a batch of one rank,"
        " and not all of them",
    )


@pytest.mark.parametrize(
    ("algo", "rest", "first"),
    [
        ({"batch_size": 16, "learning_starts": 10, "n_step": 3, "utd": 0.1}, {}, 4 * 3 * 2 * 5 + 10),
        ({"name": "appo", "num_minibatches": 1}, {"rollout": {"length": 8}}, 4 * 8 * 2 * 5),
    ],
)
def test_a_run_of_which_all_hosts_together_make_no_update_is_refused(algo: Any, rest: Any, first: int) -> None:
    keys = {"env": {"num_envs": 5}, "collect": {"num_collectors": 2}, "run_dir": "run", "device": "cpu", **rest}
    runner = {"name": "appo" if algo.get("name") == "appo" else "multi_gpu", "world_size": 1, "interface": "lo"}
    mapping = {"algo": algo, "runner": runner, **keys}
    assert hosts.follow_launcher(RunConfig.from_mapping({**mapping, "total_timesteps": first})).num_hosts == 4
    with pytest.raises(ConfigError, match=f"total_timesteps: got {first - 1}, allowed at least {first}, .* of 4 hosts"):
        hosts.follow_launcher(RunConfig.from_mapping({**mapping, "total_timesteps": first - 1}))


def test_runs_that_chose_the_same_name_in_the_same_second_take_two(tmp_path: Path) -> None:
    name = tmp_path / "runs" / "20260101-120000-s1"
    cfg = replace(RunConfig(), run_dir=str(name))
    plan = hosts.LaunchPlan(cfg, HostInfo(), 0, is_named=False)
    with plan.claim() as first, plan.claim() as second, plan.claim() as third:
        names = [run.path.name for run in (first, second, third)]
    assert names == [name.name, f"{name.name}-2", f"{name.name}-3"]


@pytest.mark.parametrize("resume", ["must", "auto"])
def test_a_host_without_a_part_of_the_common_checkpoint_goes_on_with_the_others(tmp_path: Path, resume: str) -> None:
    cfg = replace(RunConfig(), run_dir=str(tmp_path / "host-1"), resume=resume)
    with hosts.LaunchPlan(cfg, HostInfo(index=1, num_hosts=2), 20).claim() as run:
        assert run.checkpoint is None


def attempt(path: Path, **other: object) -> None:
    """A run, started by the parent of this process but for what is `other`, that ended before its first checkpoint."""
    write_config(path, RunConfig(), SpaceSpec(3, 1, (-2.0,), (2.0,)))
    (path / LOCK).write_text(json.dumps({**parent_identity(), **other}))


def test_only_the_launcher_that_started_a_run_may_begin_it_again_where_that_is_refused(tmp_path: Path) -> None:
    attempt(tmp_path)
    cfg = replace(RunConfig(), run_dir=str(tmp_path), resume="never")
    plan = hosts.LaunchPlan(cfg, HostInfo(job="a"), 0)
    with plan.claim():
        assert (tmp_path / "attempt-0").is_dir()
    # As of another torchrun, which may have the pid and the host name of the first one.
    for other in ({"parent": -1}, {"parent_started": 0}, {"boot": "of another node"}):
        attempt(tmp_path, **other)
        with pytest.raises(ConfigError, match="exists and resume=never"):
            plan.claim()


def test_a_host_that_goes_on_with_the_others_keeps_its_records(tmp_path: Path) -> None:
    """Its own part of the checkpoint is lost: on its own disk, say."""
    attempt(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"env_steps": 20}\n')
    cfg = replace(RunConfig(), run_dir=str(tmp_path))
    with hosts.LaunchPlan(cfg, HostInfo(index=1, num_hosts=2, job="a"), 20).claim() as run:
        assert run.checkpoint is None
    assert (tmp_path / "metrics.jsonl").read_text() == '{"env_steps": 20}\n'


def test_what_would_differ_between_hosts_or_be_lost_in_a_restart_is_refused() -> None:
    cfg = RunConfig.from_mapping({"algo": {"batch_size": 16}})
    with pytest.raises(ConfigError) as caught:
        hosts.follow_launcher(cfg)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["runner", "run_dir", "device"]


@pytest.fixture
def proposed(monkeypatch: pytest.MonkeyPatch) -> list[Proposal]:
    """What the hosts propose; they agree on the run directory as it is, and on env step 20."""
    proposals: list[Proposal] = []

    def agree(host: HostInfo, proposal: Proposal, timeout_s: float) -> RendezvousResult:
        proposals.append(proposal)
        return RendezvousResult(proposal.run_dir, 20, "a")

    monkeypatch.setattr(hosts, "agree", agree)
    return proposals


@pytest.mark.usefixtures("proposed")
def test_only_the_first_host_writes_to_tensorboard_wandb_and_sinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are services of all hosts: a run would be in them several times."""
    make_package(tmp_path, "plugs", SINK, {SINKS: "good = plugs:GOOD"})
    monkeypatch.syspath_prepend(str(tmp_path))
    cfg = load_config(["log.wandb=offline", "log.sinks=[good]", "sinks.good.path=here", f"run_dir={tmp_path / 'run'}"])
    first, second = (hosts.plan_launch(cfg, HostInfo(index=index, num_hosts=2)).cfg for index in (0, 1))
    assert (first.log.tensorboard, first.log.wandb, first.log.sinks) == (True, "offline", ("good",))
    assert (second.log.tensorboard, second.log.wandb, second.log.sinks) == (False, "disabled", ())
    for own in (first, second):  # what a restart reads
        assert own.run_dir is not None
        Path(own.run_dir).mkdir()
        write_config(Path(own.run_dir), own, SpaceSpec(3, 1, (-1.0,), (1.0,)))
        assert read_config(Path(own.run_dir)) == own


def test_a_host_proposes_the_checkpoints_of_its_own_part(tmp_path: Path, proposed: list[Proposal]) -> None:
    parts = {".": (20, 40), "host-1": (20,), "host-1-old": (20,), "host-": (20,)}  # the last two are no host's
    for part, steps in parts.items():
        (tmp_path / part).mkdir(exist_ok=True)
        for step in steps:
            with CheckpointStore(tmp_path / part / CHECKPOINTS).begin(step) as draft:
                draft.add_json("state", shared_state(step))
    plans = [
        hosts.plan_launch(replace(RunConfig(), run_dir=str(tmp_path)), HostInfo(index=index, num_hosts=2))
        for index in (0, 1)
    ]
    assert [sorted(one.steps) for one in proposed] == [[20, 40], [20]]
    found = [Path(path).relative_to(tmp_path).parts[0] for path in proposed[0].found]
    assert sorted(set(found)) == [CHECKPOINTS, "host-1"]
    assert [(plan.cfg.run_dir, plan.start_step) for plan in plans] == [
        (str(tmp_path), 20),
        (str(tmp_path / "host-1"), 20),
    ]
