"""The link, over a cluster whose actors are in this process: replies out of order, lost collectors, and none at all."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.checkpoint import CollectorNumbers
from offpolicy.errors import HangError
from offpolicy.processes.control_page import CollectorWord, HostWord, RankWord, Stop
from offpolicy.remote import link as link_module
from offpolicy.remote.cluster import LostError
from offpolicy.remote.collector import LocalContext, RemoteCollector, Reply, block_sizes
from offpolicy.remote.feeds import Line, RolloutFeed
from offpolicy.remote.link import Link, counters_from
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.rollout_ring import RolloutStamp
from offpolicy.training.run_memory import (
    EPISODE_COLUMNS,
    control_page,
    replay_rings,
    ring_room,
    rollout_ring,
    weights_mailbox,
)
from tests.unit.remote.test_collector import job_of, weights_of


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(link_module, "RETRY_S", 0.0)
    yield
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class FakeRemote:
    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster, self._collector, self.is_lost = cluster, RemoteCollector(), False

    def call(self, name: str, *args: Any) -> object:
        self._cluster.names.append(name)
        return self._cluster.keep(self, getattr(self._collector, name)(*args))

    def where(self) -> object:
        return self._cluster.keep(self, ("node", "host"))


class FakeCluster:
    """Actors that answer at once. Of several answers any comes first where `is_shuffled`."""

    def __init__(self, *, is_shuffled: bool = False, num_actors: int = 99, has_raylet: bool = True) -> None:
        self.is_shuffled, self.has_raylet, self.left = is_shuffled, has_raylet, num_actors
        self._random = random.Random(1)
        self.remotes: list[FakeRemote] = []
        self.names: list[str] = []  # of the calls
        self._answers: dict[object, tuple[FakeRemote, Any]] = {}

    def keep(self, remote: FakeRemote, answer: Any) -> object:
        reference = object()
        self._answers[reference] = remote, answer
        return reference

    def new_actor(self) -> FakeRemote:
        self.remotes.append(FakeRemote(self))
        self.left -= 1
        self.remotes[-1].is_lost = self.left < 0
        return self.remotes[-1]

    def put(self, weights: np.ndarray) -> np.ndarray:
        return weights.copy()

    def wait(self, references: Sequence[object], timeout_s: float) -> list[object]:
        if not references:
            time.sleep(min(timeout_s, 0.001))
        return [self._random.choice(references)] if self.is_shuffled and references else list(references)[:1]

    def get(self, reference: object, timeout_s: float = 0.0) -> Any:
        remote, answer = self._answers.pop(reference)
        if remote.is_lost:
            raise LostError("the node is gone", is_dead=True)
        return answer

    def is_alive(self, node: str = "") -> bool:
        return self.has_raylet

    def kill(self, remote: FakeRemote) -> None:
        pass


class Scene:
    """A link in a thread, and the learner's side of it in this one."""

    def __init__(self, tmp_path: Path, cluster: FakeCluster, **changed: Any) -> None:
        usual = {"collect": {"process": "own", "remote_hosts": 2}, "replay": {"capacity": 10_000}}
        job = job_of(tmp_path, total_timesteps=100_000, **usual, **changed)
        sizes = block_sizes(job.cfg, job.spec) | {"replay": ring_room(job.cfg, job.spec)}
        self.job, self.context = job, LocalContext("link", 0, {}, {}, -1, sizes=sizes)
        weights_mailbox(self.context, len(weights_of(job)[0])).publish(weights_of(job)[0])
        self.link, self.error = Link(self.context, job, cluster), None  # type: ignore[arg-type]
        self.control, self.rings = control_page(self.context.block("control"), job.cfg), replay_rings(self.context, job)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.link.run()
        except Exception as error:  # noqa: BLE001  # for the test
            self.error = error

    def grant(self, each: int) -> None:
        """Grants so many env steps per ring, asks for a report in the midst of it, and waits until they are there."""
        self.control.host[HostWord.REPORT_REQUEST] += 1
        self.control.leader[RankWord.GRANTED] = each
        wait_until(lambda: self.error is not None or self.control.env_steps >= each * len(self.rings))
        assert self.error is None

    def end(self) -> None:
        self.control.host[HostWord.STOP] = Stop.EXIT
        self._thread.join(10.0)
        assert not self._thread.is_alive()
        self.context.closing.close()


def wait_until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.002)


def content(ring: ReplayRing) -> bytes:
    return ring.read_range(ring.oldest, ring.committed).tobytes()


def test_replies_out_of_order_make_the_same_rings_and_no_call_is_for_nothing(tmp_path: Path) -> None:
    found = []
    for is_shuffled in (False, True):
        cluster = FakeCluster(is_shuffled=is_shuffled)
        scene = Scene(tmp_path, cluster)
        for each in (10, 500, 1_500):
            scene.grant(each)
        num_calls = len(cluster.names)
        time.sleep(0.05)
        scene.end()
        assert scene.control.env_steps == 3_000
        assert num_calls <= len(cluster.names) <= num_calls + 4  # a report of each that was due, and an end
        assert num_calls < 100  # a call may end by time
        found.append([content(ring) for ring in scene.rings])
    assert found[0] == found[1]


def test_the_others_take_the_share_of_a_lost_collector_until_there_is_another_one(tmp_path: Path) -> None:
    cluster = FakeCluster(num_actors=2)
    scene = Scene(tmp_path, cluster)
    scene.grant(500)
    cluster.remotes[1].is_lost = True
    scene.grant(1_000)
    assert [words[CollectorWord.ENV_STEPS] for words in scene.control.collectors] == [1_000, 1_000]
    assert scene.rings[0].num_transitions > 1_400
    cluster.left = 1  # a host has joined
    wait_until(lambda: any("goes on" in message.get("text", "") for message in scene.context.messages))
    before = [ring.num_transitions for ring in scene.rings]
    scene.grant(2_000)
    scene.end()
    more = [ring.num_transitions - count for ring, count in zip(scene.rings, before, strict=True)]
    assert sum(more) == pytest.approx(2_000, abs=100)
    assert min(more) > 800
    texts = [message.get("text", "") for message in scene.context.messages]
    assert sum(" is lost: the node is gone; the others" in text for text in texts) == 1
    assert sum("goes on, on host host, with new episodes" in text for text in texts) == 1


@pytest.mark.parametrize(("has_raylet", "kind"), [(True, HangError), (False, RuntimeError)])
def test_without_any_collector_the_link_ends(tmp_path: Path, has_raylet: bool, kind: type[Exception]) -> None:
    cluster = FakeCluster(num_actors=0, has_raylet=has_raylet)
    scene = Scene(tmp_path, cluster, runner={"timeout_s": 0.2})
    wait_until(lambda: scene.error is not None)
    assert type(scene.error) is kind
    scene.end()


def test_a_rollout_that_a_checkpoint_has_begun_goes_into_the_ring_of_its_collector(tmp_path: Path) -> None:
    algo = {"name": "appo", "hidden_dims": [8]}
    job = job_of(tmp_path, algo=algo, rollout={"length": 8}, runner={"name": "appo"})
    context = LocalContext("link", 0, {}, {}, -1, sizes=block_sizes(job.cfg, job.spec))
    ring, control = rollout_ring(context, job, 0), control_page(context.block("control"), job.cfg)
    feed, line = RolloutFeed([ring], control), Line(0, {"env_steps": 2.0})
    feed.share([line])
    shape = ring.layout.shape

    def reply(first: int, stop: int, stamp: RolloutStamp | None) -> Reply:
        rows, episodes = np.full((stop - first, *shape[1:]), 7.0, np.float32), np.empty((0, EPISODE_COLUMNS))
        return Reply(first, 0, rows, stamp, stop, episodes, b"", [], 0, 0, 0, 0)

    assert not feed.take(line, reply(0, 2, None))
    control.leader[RankWord.GRANTED] = 1
    assert feed.ask(line) == 6
    assert feed.take(line, reply(2, shape[0], RolloutStamp(0, 1, 8)))
    assert ring.committed == 1


def test_collectors_without_a_part_of_the_checkpoint_have_the_steps_that_are_left() -> None:
    saved = {0: CollectorNumbers(700, 1, 1, 0.0, {}, None, None)}
    assert [each["env_steps"] for each in counters_from(saved, 3, 901)] == [700, 101, 100]
    assert [each["env_steps"] for each in counters_from({}, 2, 900)] == [450, 450]
