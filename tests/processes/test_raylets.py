"""Collectors on the nodes of a Ray cluster: raylets of their own on this machine, with their own object stores."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.remote.cluster import LOCAL_SETTINGS, SETTINGS
from tests.conftest import Traces
from tests.processes.conftest import TINY, LiveRun, last_checkpoint, launch, replay_bytes
from tests.processes.numbered import WIDTH, lives

pytest.importorskip("ray")
pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.timeout(240)]
LOOPBACK = "127.0.0.2"  # Ray would replace the first one by the address of a network
STORE_BYTES = 78_643_200  # the least that Ray allows
PATIENCE_S = 120.0
COMMAND = ("train", *(word for word in TINY if not word.startswith("env.id=")))
NUMBERED = (
    *("env.batch=tests.processes.numbered:Numbered", "eval.episodes=0", "device=cpu"),
    "runner.start_timeout_s=240",
)
SLEEPING = ("env.kwargs.step_ms=20", "algo.utd=0.1", "replay.capacity=1000000")
MILLION = ("collect.mode=overlap", "algo.utd=0.001", "replay.capacity=2000000")
REBALANCED_S, LONGEST_GAP_S = 2.0, 3.0  # a loss is known after two: until then all wait, but with collect.mode=free


class Nodes:
    """A cluster whose head has no room for a collector; each of its `nodes` has room for one host's."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster()
        self._add(num_cpus=0)
        self.nodes: list[Any] = []  # of Ray

    def _add(self, **options: Any) -> Any:
        place = {"node_ip_address": LOOPBACK, "include_dashboard": False}
        return self.cluster.add_node(**options, **place, object_store_memory=STORE_BYTES)

    def want(self, count: int) -> str:
        """Adds nodes, or removes them, until there are `count`. Returns the address of the cluster."""
        while len(self.nodes) < count:
            self.nodes.append(self._add(num_cpus=0, resources={"collector": 1}))
        while len(self.nodes) > count:
            self.remove(len(self.nodes) - 1)
        return str(self.cluster.address)

    def remove(self, index: int) -> None:
        """Kills all processes of a node."""
        self.cluster.remove_node(self.nodes.pop(index), allow_graceful=False)


@contextmanager
def running() -> Iterator[Nodes]:
    """A cluster with no nodes yet, for processes of this user alone: it answers anybody on loopback."""
    with tempfile.TemporaryDirectory(prefix="ray-") as directory, pytest.MonkeyPatch.context() as patch:
        local = {name: value for name, value in LOCAL_SETTINGS.items() if name.startswith(("RAY_health", "RAY_gcs"))}
        for name, value in {**SETTINGS, **local, "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": directory}.items():
            patch.setenv(name, value)
        handler, nodes = signal.getsignal(signal.SIGTERM), Nodes()
        try:
            yield nodes
        finally:
            nodes.cluster.shutdown()
            signal.signal(signal.SIGTERM, handler)  # Ray has set its own


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with running() as nodes:
        yield nodes


@dataclass(frozen=True, slots=True)
class Remote:
    """Runs on the nodes, one at a time; their output goes to a file, of which no pipe can be full."""

    nodes: Nodes
    traces: Traces
    directory: Path

    def start(self, count: int, *overrides: str) -> LiveRun:
        """Starts a run with `count` remote hosts, on as many nodes."""
        place = (f"runner.ray={self.nodes.want(count)}", f"collect.remote_hosts={count}")
        with (self.directory / "out").open("w") as out:
            return launch(self.directory, self.traces.environ, (*NUMBERED, *place, *overrides), COMMAND, stdout=out)

    def output(self) -> str:
        return (self.directory / "out").read_text()


@pytest.fixture
def remote(nodes: Nodes, traces: Traces, tmp_path: Path) -> Iterator[Remote]:
    yield Remote(nodes, traces, tmp_path)
    for pid in traces.processes():
        os.kill(pid, signal.SIGKILL)


def lives_of(run: LiveRun, num_envs: int) -> list[list[Any]]:
    """The times of the vector steps of each actor, by ring; all that the run counts is in the replay once."""
    saved = last_checkpoint(run)
    rings = range(len(json.loads((saved / "state.json").read_text())["replay_end"]))
    slots = [np.frombuffer(replay_bytes(saved, ring), np.float32).reshape(-1, WIDTH) for ring in rings]
    num_transitions = sum(np.count_nonzero(rows.view(np.uint32)[:, -1]) for rows in slots)
    assert num_transitions == run.summary()["env_steps"]
    return [lives(rows, num_envs) for rows in slots]


@pytest.mark.parametrize(
    ("mode", "removals"),
    [("alternate", 1), pytest.param("overlap", 20, marks=pytest.mark.timeout(1800))],
)
def test_a_run_goes_on_without_a_lost_node_and_saves_once_all_are_lost(
    remote: Remote, mode: str, removals: int
) -> None:
    """Another node that comes has half of the rows within two seconds. No row is lost but those of open calls."""
    options = (f"collect.mode={mode}", "total_timesteps=1000000", "env.num_envs=16", "runner.timeout_s=15")
    run = remote.start(2, *SLEEPING, *options)
    run.wait_for_updates(PATIENCE_S)
    for number in range(removals):
        time.sleep(random.uniform(0.0, 0.5))
        remote.nodes.remove(random.randrange(2))
        remote.nodes.want(2)
        run.wait_until(lambda: remote.output().count(" goes on, on host ") > number, PATIENCE_S)  # noqa: B023
        time.sleep(REBALANCED_S + 2.0)
    remote.nodes.want(0)
    code, _, err = run.finish(PATIENCE_S)
    assert code == 70
    assert "no remote collector for 15 s (runner.timeout_s), of 2 collectors on runner.ray=" in err
    assert remote.output().count(" is lost: ") == removals + 2
    assert run.summary()["updates"] == (run.summary()["env_steps"] - 100) // 10
    rings = [[life[:, 0] for life in ring] for ring in lives_of(run, 16)]
    everything = np.concatenate([life for ring in rings for life in ring])
    assert sum(map(len, rings)) == 2 + removals
    assert max(np.diff(life).max() for ring in rings for life in ring) < LONGEST_GAP_S
    for life in (life for ring in rings for life in ring[1:]):
        begin = life[0] + REBALANCED_S
        own, both = (np.count_nonzero((times >= begin) & (times < begin + 1.5)) for times in (life, everything))
        assert 0.4 < own / both < 0.6


@pytest.mark.timeout(900)
def test_of_a_million_slots_none_is_lost_doubled_torn_or_out_of_order(remote: Remote) -> None:
    run = remote.start(2, "total_timesteps=1000000", "env.num_envs=64", *MILLION)
    code, _, err = run.finish(600.0)
    assert (code, err) == (0, "")
    assert [len(ring) for ring in lives_of(run, 64)] == [1, 1]
    env_steps, updates = (run.summary()[name] for name in ("env_steps", "updates"))
    assert env_steps >= 1_000_000
    assert updates == (env_steps - 100) // 1000


def test_a_run_whose_head_is_killed_saves_and_exits_1(remote: Remote) -> None:
    with running() as nodes:
        run = replace(remote, nodes=nodes).start(1, *SLEEPING, "total_timesteps=1000000", "env.num_envs=8")
        run.wait_for_updates(PATIENCE_S)
        nodes.cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        code, _, err = run.finish(PATIENCE_S)
        assert code == 1
        assert "link 0" in err
        assert [len(ring) for ring in lives_of(run, 8)] == [1]
        remote.traces.assert_none(grace_s=30.0)


@pytest.mark.alone
@pytest.mark.timeout(900)
def test_twice_the_hosts_collect_twice_as_fast_as_predicted(remote: Remote) -> None:
    rates = {}
    for count in (1, 2, 4):
        run = remote.start(
            count, *SLEEPING,
            "collect.mode=free", f"total_timesteps={8000 * count}", "env.num_envs=8", f"run_dir=hosts-{count}",
        )  # fmt: skip
        assert run.finish(PATIENCE_S)[0] == 0
        steady = [record for record in run.records() if 2000 * count < record["env_steps"] < 7500 * count]
        num_steps, seconds = (steady[-1][name] - steady[0][name] for name in ("env_steps", "wall_s"))
        rates[count] = num_steps / seconds
        predicted = statistics.median(record["perf/predicted_steps_per_sec"] for record in steady)
        assert predicted == pytest.approx(rates[count], rel=0.1)
    assert rates[2] >= 1.9 * rates[1]
    assert rates[4] >= 3.6 * rates[1]
