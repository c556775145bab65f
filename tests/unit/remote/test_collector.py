"""A collector that works call by call feeds a ring as the one that writes into it does."""

from __future__ import annotations

import os
import time
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offpolicy
from offpolicy.algos.registry import make_policy
from offpolicy.collect.collector import Collector
from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.envs.probe import probe
from offpolicy.nets.policy import flat_size
from offpolicy.processes.control_page import RankWord
from offpolicy.processes.reports import unpack
from offpolicy.remote.collector import LocalContext, RemoteCollector, Reply, Start, block_sizes
from offpolicy.remote.feeds import Line, Sent
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.timing.ledger import NullLedger
from offpolicy.timing.phases import CollectorPhase
from offpolicy.training.collecting import open_collector
from offpolicy.training.run_memory import (
    EPISODE_COLUMNS,
    control_page,
    replay_ring,
    ring_room,
    rollout_layout,
    rollout_ring,
    weights_mailbox,
)
from offpolicy.training.worker import HostPlan, WorkerSpec
from offpolicy.types import LinkTotals

VERSIONS = 4  # of the weights
SAC = {"name": "sac", "hidden_dims": [8], "learning_starts": 20}


@pytest.fixture(autouse=True)
def _scheduler() -> Iterator[None]:
    """A collector runs in the background; the tests after this one do not."""
    yield
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def job_of(tmp_path: Path, **changed: Any) -> WorkerSpec:
    raw = {
        "algo": changed.pop("algo", None) or SAC,
        "env": {"id": "offpolicy.envs.toy:PointMass-v0", "vectorization": "sync", **changed.pop("env", {})},
        "replay": {"capacity": 1000},
        "collect": {"process": "own"},
        "eval": {"episodes": 0},
        **changed,
    }
    cfg = RunConfig.from_mapping(raw)
    return WorkerSpec(
        cfg, probe(cfg.env).spec, HostPlan(False, 1, 1), HostInfo(), str(tmp_path), start_step=0, checkpoint=None,
        store_port=0,
    )  # fmt: skip


def weights_of(job: WorkerSpec) -> list[np.ndarray]:
    size = flat_size(make_policy(job.cfg.algo, job.spec))
    return [np.random.default_rng(number).normal(0, 0.1, size).astype(np.float32) for number in range(VERSIONS)]


class LocalScene:
    """The collector of the learner's host, in this process."""

    def __init__(self, job: WorkerSpec) -> None:
        sizes = block_sizes(job.cfg, job.spec) | {"replay": ring_room(job.cfg, job.spec)}
        self.context = LocalContext("collector", 0, {}, {}, -1, sizes=sizes)
        self.control = control_page(self.context.block("control"), job.cfg)
        self.mailbox = weights_mailbox(self.context, len(weights_of(job)[0]))
        self.collector: Collector = open_collector(self.context, job, self.control, NullLedger(CollectorPhase), index=0)

    def collect(self, granted: int, weights: np.ndarray) -> None:
        self.control.leader[RankWord.VERSION] = self.mailbox.publish(weights)
        self.control.leader[RankWord.GRANTED] = granted
        while self.collector.take_turn():
            pass


def start_of(job: WorkerSpec) -> Start:
    ahead = np.empty((0, job.spec.obs_dim + job.spec.action_dim + 3), np.float32)
    return Start(job.to_json(), 0, 0, ahead, {}, {}, offpolicy.__version__, os.getcwd())


def take(ring: ReplayRing, reply: Reply) -> None:
    assert reply.first == ring.committed
    ring.write_slots(reply.rows, reply.num_complete)


@pytest.mark.parametrize(("num_envs", "n_step"), [(1, 1), (2, 1), (2, 3)])
def test_the_replies_make_the_ring_of_a_collector_that_writes_it_itself(
    tmp_path: Path, num_envs: int, n_step: int
) -> None:
    job = job_of(
        tmp_path,
        env={"num_envs": num_envs},
        algo={**SAC, "n_step": n_step},
        total_timesteps=400,
    )
    local, remote = LocalScene(job), RemoteCollector()
    ring = ReplayRing(
        memoryview(bytearray(ring_room(job.cfg, job.spec))), replay_ring(local.context, job, 0).layout,
        job.cfg.replay_rows, num_envs=num_envs, n_step=n_step,
    )  # fmt: skip
    take(ring, remote.open(start_of(job)))
    episodes = [np.empty((0, 7))]
    for version, (granted, weights) in enumerate(zip((15, 16, 200, 401), weights_of(job), strict=True), 1):
        local.collect(granted, weights)
        for target in (granted - 1, granted):
            reply = remote.collect(target, version, 0, (0,), 0, weights if target == granted - 1 else None)
            take(ring, reply)
            episodes.append(reply.episodes)
        assert reply.env_steps == local.collector.env_steps
    expected = replay_ring(local.context, job, 0)
    assert (ring.oldest, ring.committed, ring.end) == (expected.oldest, expected.committed, expected.end)
    assert ring.num_transitions == expected.num_transitions
    span = ring.oldest, ring.committed
    assert ring.read_range(*span).tobytes() == expected.read_range(*span).tobytes()
    assert ring.copy_open().tobytes() == expected.copy_open().tobytes()
    ended = local.collector.episodes
    assert ended.committed > 0
    np.testing.assert_array_equal(np.concatenate(episodes), ended.read_range(0, ended.committed))
    remote.end()
    local.context.closing.close()


@pytest.mark.parametrize("per_call", [1, 3, 8])
def test_the_parts_of_rollouts_make_those_that_a_collector_hands_over_itself(tmp_path: Path, per_call: int) -> None:
    algo = {"name": "appo", "hidden_dims": [8]}
    job = job_of(tmp_path, env={"num_envs": 2}, algo=algo, rollout={"length": 8}, runner={"name": "appo"})
    local, remote = LocalScene(job), RemoteCollector()
    remote.open(start_of(job))
    ring, layout = rollout_ring(local.context, job, 0), rollout_layout(job.cfg, job.spec)
    expected, rows = np.empty(layout.shape, np.float32), np.empty(layout.shape, np.float32)
    for version, weights in enumerate(weights_of(job) * 10, 1):
        local.collect(version, weights)
        stamp, reply = ring.take(expected), None
        while reply is None or reply.stamp is None:
            is_first = reply is None
            reply = remote.collect(per_call, version, 0, (0,), 0, weights if is_first else None)
            rows[reply.first : reply.first + len(reply.rows)] = reply.rows
        assert reply.stamp == stamp
        assert rows.tobytes() == expected.tobytes()
        assert reply.env_steps == local.collector.env_steps
    remote.end()
    local.context.closing.close()


def test_time_between_calls_is_the_links_but_for_that_in_which_nothing_was_asked(tmp_path: Path) -> None:
    job, remote = job_of(tmp_path, algo={**SAC, "learning_starts": 1}), RemoteCollector()
    remote.open(start_of(job))
    weights, waits = weights_of(job)[0], dict[int, dict[str, int]]()
    for number, unasked_ns in enumerate((0, 0, 10**12), 1):  # the first one ends the warm-up
        time.sleep(0.05)
        remote.called_ns = time.monotonic_ns()
        time.sleep(0.01)
        reply = remote.collect(10 * number, 1, number, (0,), unasked_ns, weights if number == 1 else None)
        assert reply.queued_ns >= 10_000_000
        assert (reply.busy_ns > 0, reply.serialise_ns > 0) == (True, True)
        (totals,) = unpack(np.frombuffer(zlib.decompress(reply.totals), np.uint8))
        waits[number] = totals.account.phases_ns
    assert waits[2]["link_wait"] - waits[1]["link_wait"] >= 60_000_000
    assert waits[2]["learner_wait"] - waits[1]["learner_wait"] < 1_000_000
    assert waits[3]["link_wait"] == waits[2]["link_wait"]
    assert waits[3]["learner_wait"] - waits[2]["learner_wait"] >= 60_000_000
    remote.end()


def test_a_call_is_charged_by_its_parts() -> None:
    line = Line(0, {"env_steps": 5.0}, empty_ns=deque([3, 1, 2]))
    rows = np.zeros((2, 4), np.float32)
    reply = Reply(0, 2, rows, None, 7, np.empty((0, EPISODE_COLUMNS)), b"123", [], 0, 10, 20, 30)
    line.charge(Sent(0, 4, 100), reply, round_trip_ns=70, copy_ns=9, lag=3)
    assert line.costs == LinkTotals(10, 20, 30, 70 - 60 - 2, 2, 9, 1, 100 + 32 + 3, 2, 3)
    assert line.env_steps == 7
