"""The link: the process of the learner's host that stands for all remote collectors.

It is the only writer of their rings and of their words on the control page, so the learner sees collectors as ever. A
call is a grant: no call, no rows. At most two calls of a collector are open: one runs, the other one waits. Their
replies are taken in the order of the calls, whatever order they come in, so every row counts exactly once.

A remote collector that is lost has its open calls dropped. The others take its share over, and another actor is asked
for, which begins new episodes. Where the link itself dies, all processes begin again, as after any death.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

import offpolicy
from offpolicy.algos.registry import make_policy
from offpolicy.checkpoint import (
    CHECKPOINTS,
    Checkpoint,
    CheckpointStore,
    CollectorNumbers,
    SharedState,
    make_part,
    read_replay,
)
from offpolicy.errors import HangError
from offpolicy.model.windows import NS_PER_S
from offpolicy.nets.policy import flat_size
from offpolicy.output import counted
from offpolicy.processes.child import ChildContext
from offpolicy.processes.control_page import CollectorWord, HostWord, RankWord, Stop
from offpolicy.processes.handshake import POLL_S, steps_per_collector, wake
from offpolicy.processes.reports import Reports, unpack
from offpolicy.remote.cluster import MOST_CALLS, Cluster, LostError
from offpolicy.remote.collector import Reply, Start
from offpolicy.remote.feeds import Line, ReplayFeed, RolloutFeed, Sent
from offpolicy.replay.ring import Ring
from offpolicy.timing.clock import MonotonicClock, Stopwatch
from offpolicy.training import run_memory
from offpolicy.training.run_memory import COLLECTOR_COUNTERS, EPISODE_COLUMNS
from offpolicy.training.worker import SNAPSHOT_DIR, WorkerSpec
from offpolicy.types import NO_ACCOUNT, CollectorTotals

GRANT_POLL_S = 0.002  # between two looks for a grant while a collector could be given another call
ARRIVAL_S = 30.0  # for the other collectors to arrive, once the first one is there
RETRY_S = 1.0  # from a loss until another actor is asked for
UNKNOWN_S = 30.0  # after which a node that does not answer, and that Ray does not hold for dead, is asked again
GRACE_S = 8.0  # beyond `env.step_timeout_s` for the reply to a call
LAST_REPORT_S = 2.0  # for the reports at the end
PROBE_NS, FIRST_PROBES = 10_000_000_000, 5  # between two empty calls; one after another at first


def counters_from(
    saved: Mapping[int, CollectorNumbers], num_collectors: int, env_steps: int
) -> Iterator[dict[str, float]]:
    """Yields the counters that each collector goes on from, the saved ones; together they have the env steps."""
    new = [index for index in range(num_collectors) if index not in saved]
    left = env_steps - sum(numbers.env_steps for numbers in saved.values())
    for index in range(num_collectors):
        if index in saved:
            yield {name: getattr(saved[index], name) for name in COLLECTOR_COUNTERS}
        else:
            own = steps_per_collector(left - new.index(index), len(new))
            yield {"env_steps": own, "vector_steps": 0, "policy_lag_sum": 0.0, "policy_steps": 0}


class Link:
    """The state of the link."""

    def __init__(self, child: ChildContext, job: WorkerSpec, cluster: Cluster) -> None:
        self._child, self._job, self._cfg, self._cluster = child, job, job.cfg, cluster
        self._control = run_memory.control_page(child.block("control"), job.cfg)
        self._words, indices = self._control.collectors, range(job.cfg.num_rings)
        self._wake_event = child.wake_event("collector_wake-0")
        self._to_wake = [child.wake_event(name) for name in run_memory.waiting_for_rows(job.cfg)]
        self._reports = [Reports[CollectorTotals](child.block(f"collector_report-{index}")) for index in indices]
        self._episodes = [Ring(child.block(f"episodes-{index}"), EPISODE_COLUMNS, np.float64) for index in indices]
        self._totals: dict[int, CollectorTotals] = {}  # newest, by collector
        size = flat_size(make_policy(job.cfg.algo, job.spec))
        self._mailbox = run_memory.weights_mailbox(child, size)
        self._weights, self._version, self._reference = np.zeros(size, np.float32), 0, None
        self._checkpoint: Checkpoint | None = None
        self._saved = dict[int, CollectorNumbers]()  # of the collectors that go on where the checkpoint left them
        if job.checkpoint is not None:
            self._checkpoint = saved = CheckpointStore(Path(job.run_dir) / CHECKPOINTS).at(job.checkpoint)
            if saved.read(SharedState, "state").num_collectors == job.cfg.num_rings:
                names = {index: f"collector-{index}" for index in indices}
                has_part = {index: name for index, name in names.items() if saved.has(name)}
                self._saved = {index: saved.read(CollectorNumbers, name) for index, name in has_part.items()}
        counters = counters_from(self._saved, job.cfg.num_rings, job.start_step)
        self._lines = [Line(index, each) for index, each in enumerate(counters)]
        self._feed = self._make_feed()
        self._elapsed_s = Stopwatch().elapsed_s
        self._live_s, self._begin_s = 0.0, math.inf  # when a collector was there last; when no other one is waited for
        self._named = set[str]()  # lost nodes that a warning has named
        self._turn = 0  # index of the line whose reply is taken first
        self._reported = 0  # newest request for a report that those who are lost have answered

    def _make_feed(self) -> ReplayFeed | RolloutFeed:
        if self._cfg.algo.learns_from_rollouts:
            rollouts = [run_memory.rollout_ring(self._child, self._job, line.index) for line in self._lines]
            return RolloutFeed(rollouts, self._control)
        rings = run_memory.replay_rings(self._child, self._job)
        for index, ring in enumerate(rings):
            saved = read_replay(self._checkpoint, index, ring.width) if self._checkpoint is not None else None
            if saved is not None:
                ring.restore_slots(*saved)
        return ReplayFeed(rings, self._control)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Calls the collectors until it is time to exit. Raises `HangError` without any, and what they raise."""
        for line in self._lines:
            self._child.send("hello", name=f"collector {line.index}", **line.counters)
            self._publish(line, CollectorTotals(NO_ACCOUNT, **line.counters))  # type: ignore[arg-type]
            self._begin(line)
        self._publish_steps()
        while self._control.host[HostWord.STOP] != Stop.EXIT:
            if self._control.owes_snapshot(0) and not any(line.calls for line in self._lines if line.is_live):
                self._take_snapshots()
            self._answer_reports()
            if self._is_standing:
                self._rest(POLL_S)
                continue
            if self._may_grant:
                self._grant()
            self._probe()
            self._take_replies()
            self._check_calls()
            self._words[0][CollectorWord.PROGRESS] += 1
        self._report_last()

    @property
    def _is_standing(self) -> bool:
        """True while the learner copies the rows that belong to a snapshot: no row may be written."""
        done = self._words[0][CollectorWord.SNAPSHOT_DONE]
        return self._control.leader[RankWord.SNAPSHOT_RELEASE] < done

    @property
    def _may_grant(self) -> bool:
        has_begun = all(line.is_live or line.lost_s for line in self._lines) or self._elapsed_s() > self._begin_s
        return has_begun and not self._control.is_stopping and not self._control.owes_snapshot(0)

    def _rest(self, timeout_s: float) -> None:
        """Waits for the learner, at most `timeout_s`."""
        words = self._words[0]
        words[CollectorWord.IS_WAITING] = 1
        self._wake_event.wait(timeout_s)
        words[CollectorWord.IS_WAITING] = 0
        words[CollectorWord.PROGRESS] += 1

    def _take_replies(self) -> None:
        """Waits for a reply, or for the learner where none is to come, and takes it."""
        waiting = [line.probe for line in self._lines if line.probe is not None]  # first: their time is measured
        lines = (*self._lines[self._turn :], *self._lines[: self._turn])  # of several replies the first one is taken
        waiting += [call for line in lines for call in line.calls if call not in line.replies]
        if not waiting:
            self._rest(GRANT_POLL_S if any(line.remote is None for line in self._lines) else POLL_S)
        may_ask = self._may_grant and any(line.is_live and len(line.calls) < MOST_CALLS for line in self._lines)
        for call in self._cluster.wait(waiting, GRANT_POLL_S if may_ask else POLL_S / 5):
            (line,) = (line for line in self._lines if call in line.calls or call is line.probe)
            self._turn = line.index + 1
            try:
                reply, now_ns = self._cluster.get(call), MonotonicClock.now_ns()
            except LostError as error:
                self._lose(line, error)
                return
            if call is line.probe:
                line.empty_ns.append(now_ns - line.probed_ns)
                line.probe = None
                return
            line.replies[call] = reply, now_ns - line.calls[call].ns
            while line.calls and (oldest := next(iter(line.calls))) in line.replies:
                self._take(line, line.calls.pop(oldest), *line.replies.pop(oldest))

    def _take(self, line: Line, sent: Sent, reply: Reply, round_trip_ns: int) -> None:
        """Writes what a collector has done into the memory of this host, then wakes the learner."""
        line.replied_ns = MonotonicClock.now_ns()
        if not line.is_live:
            self._arrive(line)
            if not line.is_live:  # lost again
                return
        start_ns = MonotonicClock.now_ns()
        has_more = self._feed.take(line, reply)
        if len(reply.episodes):
            self._episodes[line.index].append(reply.episodes)
        copy_ns = MonotonicClock.now_ns() - start_ns
        if has_more:
            line.charge(sent, reply, round_trip_ns, copy_ns, self._mailbox.version - sent.version)
        if reply.totals:
            self._publish(line, unpack(np.frombuffer(zlib.decompress(reply.totals), np.uint8))[0])
        self._words[line.index][CollectorWord.RESTARTS] = line.restarts + reply.restarts
        for message in reply.messages:
            self._child.send(**message)
        if has_more:
            self._publish_steps()
            wake(self._to_wake)

    def _publish(self, line: Line, totals: CollectorTotals) -> None:
        self._totals[line.index] = totals = replace(totals, link=line.costs)
        # A report may be from the middle of a call: env steps are those of the replies.
        line.counters |= {name: getattr(totals, name) for name in COLLECTOR_COUNTERS if name != "env_steps"}
        self._reports[line.index].publish(totals)

    def _publish_steps(self) -> None:
        for words, env_steps in zip(self._words, self._feed.announced(self._lines), strict=True):
            words[CollectorWord.ENV_STEPS] = env_steps

    # -- calls --------------------------------------------------------------------------------------------------------

    def _grant(self) -> None:
        """Calls the collectors that may go on."""
        for line in self._lines:
            while line.is_live and len(line.calls) < MOST_CALLS:
                target = self._feed.ask(line)
                if target is None:
                    break
                self._call(line, target)

    def _call(self, line: Line, target: int) -> None:
        """Grants a collector `target`, with the newest weights if it has older ones; 0 asks for a report alone."""
        assert line.remote is not None
        newest, weights, size = self._mailbox.version, None, 0
        if newest > line.version:
            if newest > self._version:
                self._version = self._mailbox.read(self._weights)
                self._reference = self._cluster.put(self._weights)
            line.version, weights, size = self._version, self._reference, self._weights.nbytes
        line.report = self._control.host[HostWord.REPORT_REQUEST]
        steps, now_ns = tuple(words[CollectorWord.ENV_STEPS] for words in self._words), MonotonicClock.now_ns()
        unasked_ns = 0 if line.calls else now_ns - line.replied_ns
        if not line.calls:
            line.replied_ns = now_ns
        call = line.remote.call("collect", target, line.version, line.report, steps, unasked_ns, weights)
        line.calls[call] = Sent(now_ns, line.version, size)

    def _answer_reports(self) -> None:
        """Asks collectors that have nothing to do for their report; those that are lost have their last one."""
        request = self._control.host[HostWord.REPORT_REQUEST]
        for line in self._lines:
            if line.is_live and not line.calls and line.report != request and not self._is_standing:
                self._call(line, 0)
            elif not line.is_live and request != self._reported:
                self._publish(line, self._totals[line.index])
        self._reported = request

    def _report_last(self) -> None:
        """Publishes what the collectors have done since their last report; one that is busy is not waited for."""
        until_s = self._elapsed_s() + LAST_REPORT_S
        last = [line for line in self._lines if line.remote and line.is_live and not line.calls]
        for line in last:
            line.calls[line.remote.call("end")] = Sent(MonotonicClock.now_ns(), line.version, 0)  # type: ignore[union-attr]
        while any(line.calls for line in last) and self._elapsed_s() < until_s:
            self._take_replies()

    def _probe(self) -> None:
        """Makes empty calls, which tell what a call takes besides its work and its bytes."""
        for line in self._lines:
            since_ns = MonotonicClock.now_ns() - line.probed_ns
            if line.is_live and line.probe is None and (len(line.empty_ns) < FIRST_PROBES or since_ns > PROBE_NS):
                assert line.remote is not None
                line.probed_ns, line.probe = MonotonicClock.now_ns(), line.remote.where()

    # -- arrivals and losses ------------------------------------------------------------------------------------------

    def _start(self, line: Line) -> Start:
        """Returns what a collector begins with: where the checkpoint left it, or its last reply."""
        job, files = self._job, dict[str, bytes]()
        if self._checkpoint is not None and line.index in self._saved and not line.lost_s:
            names = [name for name in self._checkpoint.files if name.startswith(f"collector-{line.index}.")]
            files = {name: (self._checkpoint.path / name).read_bytes() for name in (*names, "state.json")}
        elif job.start_step or line.lost_s:  # new episodes, with the seeds of this start
            self._feed.drop(line)
            job = replace(job, start_step=self._cfg.num_rings * line.env_steps + line.index, checkpoint=None)
        first, ahead = self._feed.start(line)
        return Start(job.to_json(), line.index, first, ahead, files, line.counters, offpolicy.__version__, os.getcwd())

    def _begin(self, line: Line) -> None:
        line.remote, line.version, line.node = self._cluster.new_actor(), 0, ""
        line.empty_ns.clear()
        line.restarts = self._words[line.index][CollectorWord.RESTARTS]
        now_ns = MonotonicClock.now_ns()
        line.calls[line.remote.call("open", self._start(line))] = Sent(now_ns, 0, 0)

    def _arrive(self, line: Line) -> None:
        """Gives a collector that has begun its share."""
        assert line.remote is not None
        try:
            line.node, line.host = self._cluster.get(line.remote.where())
        except LostError as error:
            self._lose(line, error)
            return
        line.is_live, self._live_s = True, self._elapsed_s()
        self._begin_s = min(self._begin_s, self._live_s + ARRIVAL_S)
        self._named.discard(line.node)
        if line.lost_s:
            self._child.send("note", text=f"collector {line.index} goes on, on host {line.host}, with new episodes")
        self._feed.share(self._lines)
        for words in self._words:
            words[CollectorWord.HAS_BEGUN] = 1
        wake(self._to_wake)

    def _check_calls(self) -> None:
        """Gives up collectors that are silent, and asks for others. Raises as `_wait_for_one`."""
        now_s, live = self._elapsed_s(), [line for line in self._lines if line.is_live]
        if live:
            self._live_s = now_s
        else:
            self._wait_for_one(now_s - self._live_s)
        limit_s = self._cfg.env.step_timeout_s + GRACE_S
        for line in live:
            if line.calls and MonotonicClock.now_ns() - line.replied_ns > NS_PER_S * limit_s:
                self._lose(line, LostError(f"no reply for {limit_s:g} s", is_dead=False))
        for line in self._lines:
            if line.remote is None and self._may_retry(line, now_s):
                self._begin(line)

    def _wait_for_one(self, waited_s: float) -> None:
        """Raises `HangError` where no collector has come in time, `RuntimeError` where none can come."""
        if not self._cluster.is_alive():
            raise RuntimeError("the raylet of this host has ended")
        if waited_s > self._cfg.runner.timeout_s:
            raise HangError(
                f"no remote collector for {self._cfg.runner.timeout_s:g} s (runner.timeout_s), of"
                f" {counted(len(self._lines), 'collector')} on runner.ray={self._cfg.runner.ray}"
            )

    def _may_retry(self, line: Line, now_s: float) -> bool:
        """True if another actor would not be placed on the node that is gone."""
        since_s = now_s - line.lost_s
        is_known = line.is_dead or since_s > UNKNOWN_S or (line.node != "" and not self._cluster.is_alive(line.node))
        return since_s > RETRY_S and is_known

    def _lose(self, line: Line, error: LostError) -> None:
        """Drops what a collector has not replied; the others take its share."""
        was_live, line.is_live, line.is_dead, line.lost_s = line.is_live, False, error.is_dead, self._elapsed_s()
        assert line.remote is not None
        self._cluster.kill(line.remote)
        line.remote = line.probe = None
        line.calls.clear()
        line.replies.clear()
        self._feed.drop(line)
        where = f"on host {line.host} is lost" if was_live else "cannot begin"
        if (line.node or where) not in self._named:
            self._named.add(line.node or where)
            text = f"collector {line.index} {where}: {error}"
            self._child.send("warning", text=f"{text}; the others take its share until another one is there")
        if any(line.is_live for line in self._lines):
            self._feed.share(self._lines)
            self._publish_steps()  # the learner may have waited for this collector alone
            wake(self._to_wake)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _take_snapshots(self) -> None:
        """Writes the parts of a checkpoint of all collectors, an empty one of each that is lost."""
        calls = {line.index: line.remote.call("snapshot") for line in self._lines if line.remote and line.is_live}
        for line in self._lines:
            files, errno = dict[str, bytes](), 0
            try:
                if line.is_live:
                    files, errno = self._cluster.get(calls[line.index], self._cfg.env.step_timeout_s)
            except LostError as error:
                self._lose(line, error)
            directory = make_part(Path(self._job.run_dir) / f"{SNAPSHOT_DIR}-collector-{line.index}")
            for name, content in files.items():
                (directory / name).write_bytes(content)
            words = self._words[line.index]
            words[CollectorWord.SNAPSHOT_ERRNO] = errno
            self._words[0][CollectorWord.PROGRESS] += 1
        for words in self._words:
            words[CollectorWord.SNAPSHOT_DONE] = self._control.leader[RankWord.SNAPSHOT_REQUEST]
        wake(self._to_wake)
