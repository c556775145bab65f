"""What is refused with the ranks of all hosts in view, before a host meets the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from offpolicy.config.schema import RunConfig, write_config
from offpolicy.distributed.host_info import HostInfo
from offpolicy.distributed.rendezvous import Proposal, RendezvousResult
from offpolicy.errors import ConfigError, RunDirBusyError
from offpolicy.launch import hosts
from offpolicy.types import SpaceSpec


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


def test_a_share_that_every_rank_can_have_is_not_refused() -> None:
    assert hosts.follow_launcher(config(0.25)).num_hosts == 4


def test_ranks_of_several_hosts_that_average_gradients_have_no_compiled_updates() -> None:
    cfg = RunConfig.from_mapping(
        {**config(0.25).to_mapping(), "algo": {"compile": "reduce-overhead", "batch_size": 16}}
    )
    with pytest.raises(ConfigError, match=r"algo.compile: got reduce-overhead, .* and 4 learner ranks"):
        hosts.follow_launcher(cfg)


def test_several_ranks_have_no_virtual_speedup() -> None:
    cfg = RunConfig.from_mapping({**config(0.25).to_mapping(), "timing": {"virtual_speedup": True}})
    with pytest.raises(ConfigError, match="allowed false with 4 learner ranks"):
        hosts.follow_launcher(cfg)


def test_hosts_have_no_memory_in_common() -> None:
    cfg = RunConfig.from_mapping({**config(0.25).to_mapping(), "runner": {"name": "multi_gpu", "backend": "memory"}})
    with pytest.raises(ConfigError, match="runner.backend: got memory, allowed auto, gloo or nccl: 4 hosts"):
        hosts.follow_launcher(cfg)


def test_runs_that_chose_the_same_name_in_the_same_second_take_two(tmp_path: Path) -> None:
    name = tmp_path / "runs" / "20260101-120000-s1"
    cfg = replace(RunConfig(), run_dir=str(name))
    plan = hosts.LaunchPlan(cfg, HostInfo(), 0, is_named=False)
    with plan.claim() as first, plan.claim() as second, plan.claim() as third:
        names = [run.path.name for run in (first, second, third)]
    assert names == [name.name, f"{name.name}-2", f"{name.name}-3"]


def test_a_name_that_somebody_chose_is_refused_while_it_is_in_use(tmp_path: Path) -> None:
    plan = hosts.LaunchPlan(replace(RunConfig(), run_dir=str(tmp_path / "run")), HostInfo(), 0)
    with plan.claim(), pytest.raises(RunDirBusyError):
        plan.claim()


def resumed(tmp_path: Path, index: int, *, saved: str) -> RunConfig:
    """What a host makes of `auto` for eight HalfCheetahs in a run of which only this host's part is on its disk."""
    env = {"id": "HalfCheetah-v5", "num_envs": 8}
    own_dir = hosts.host_dir(tmp_path, index)
    own_dir.mkdir(exist_ok=True)
    old = RunConfig.from_mapping({"env": {**env, "vectorization": saved}})
    write_config(own_dir, old, SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6))
    cfg = RunConfig.from_mapping({"env": env, "run_dir": str(tmp_path)})
    return hosts.with_vectorization(cfg, HostInfo(index=index, num_hosts=2))


@pytest.mark.parametrize("index", [0, 1])
def test_each_host_goes_on_with_the_vectorization_of_its_own_part_of_the_run(tmp_path: Path, index: int) -> None:
    assert resumed(tmp_path, index, saved="sync").env.vectorization == "sync"


def test_a_new_run_and_an_unreadable_configuration_take_what_auto_stands_for(tmp_path: Path) -> None:
    assert resumed(tmp_path, 0, saved="auto").env.vectorization == "mujoco"
    (tmp_path / "config.yaml").write_text("nonsense: 1")
    cfg = RunConfig.from_mapping({"env": {"id": "HalfCheetah-v5", "num_envs": 8}, "run_dir": str(tmp_path)})
    assert hosts.with_vectorization(cfg, HostInfo()).env.vectorization == "mujoco"


def test_hosts_agree_on_auto_and_each_takes_what_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proposed: list[Proposal] = []

    def agree(host: HostInfo, proposal: Proposal, timeout_s: float) -> RendezvousResult:
        proposed.append(proposal)
        return RendezvousResult(proposal.run_dir, 0, "launch")

    monkeypatch.setattr(hosts, "agree", agree)
    cfg = RunConfig.from_mapping({"env": {"id": "HalfCheetah-v5", "num_envs": 8}, "run_dir": str(tmp_path)})
    new = hosts.plan_launch(cfg, HostInfo(index=0, num_hosts=2))
    monkeypatch.setattr("offpolicy.envs.vectorization.has_batch", lambda: False)
    old = hosts.plan_launch(cfg, HostInfo(index=1, num_hosts=2))
    assert [one.config["env.vectorization"] for one in proposed] == ["auto", "auto"]
    assert (new.cfg.env.vectorization, old.cfg.env.vectorization) == ("mujoco", "sync")
