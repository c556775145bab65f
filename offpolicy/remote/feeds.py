"""What each remote collector is asked for, and where its rows go: the replay's rings, or those of rollouts.

A collector that is lost must not hold the learner up: the others take its share over. Until one is lost, every
collector does what it would do on the learner's host.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import add
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from offpolicy.processes.control_page import ControlPage, RankWord
from offpolicy.remote.cluster import Remote
from offpolicy.remote.collector import REPLY_BYTES, Reply
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.rollout_ring import RolloutRing
from offpolicy.types import Float32, LinkTotals


class Sent(NamedTuple):
    """What is known of an open call."""

    ns: int  # when it was made
    version: int  # of the collector's weights
    size: int  # bytes of weights that went with it


@dataclass(slots=True)
class Line:
    """The link's side of one remote collector."""

    index: int
    counters: dict[str, float]  # `COLLECTOR_COUNTERS` of what has come
    remote: Remote | None = None  # None while it is lost
    node: str = ""
    host: str = ""
    is_live: bool = False  # it has begun, and is not lost
    calls: dict[Any, Sent] = field(default_factory=dict)  # open ones by their references, oldest first
    replies: dict[Any, tuple[Reply, int]] = field(default_factory=dict)  # of later calls than the oldest, with ns taken
    replied_ns: int = 0  # when the newest reply was taken, or the call that ended a pause was made
    probe: Any = None  # reference of an empty call
    probed_ns: int = 0  # when it was made
    empty_ns: deque[int] = field(default_factory=lambda: deque(maxlen=5))  # that empty calls have taken
    costs: LinkTotals = LinkTotals(*[0] * len(LinkTotals._fields))
    asked: int = 0  # env steps, or vector steps of the open rollout, that the newest call goes up to
    version: int = 0  # of the newest weights that it was sent
    report: int = 0  # newest report that was asked for
    lost_s: float = 0.0
    is_dead: bool = False  # its process is known to have ended
    restarts: int = 0  # of environments, before this actor

    @property
    def env_steps(self) -> int:
        """Transitions that have come."""
        return int(self.counters["env_steps"])

    def charge(self, sent: Sent, reply: Reply, round_trip_ns: int, copy_ns: int, lag: int) -> None:
        """Adds what a call has cost, and the env steps that it brought."""
        on_host_ns = reply.queued_ns, reply.busy_ns, reply.serialise_ns
        overhead_ns = int(median(self.empty_ns)) if self.empty_ns else 0
        transfer_ns = round_trip_ns - sum(on_host_ns) - overhead_ns
        size = sent.size + reply.rows.nbytes + reply.episodes.nbytes + len(reply.totals)
        cost = *on_host_ns, transfer_ns, overhead_ns, copy_ns, 1, size, reply.env_steps - self.env_steps, lag
        self.costs = LinkTotals(*map(add, self.costs, cost))
        self.counters["env_steps"] = reply.env_steps


class ReplayFeed:
    """Feeds the replay: env steps are granted."""

    def __init__(self, rings: Sequence[ReplayRing], control: ControlPage) -> None:
        self._rings, self._control = rings, control
        ring = rings[0]
        self._most = max(min(REPLY_BYTES // ring.layout.nbytes, ring.max_transitions // 4), ring.num_envs)
        self._bases: dict[int, int] = {}  # env steps from which each collector's share counts; empty: all from 0
        self._base, self._num_live = 0, len(rings)

    def start(self, line: Line) -> tuple[int, Float32]:
        """Returns the first slot that a new collector writes, and the open ones from there on."""
        ring = self._rings[line.index]
        return ring.committed, ring.copy_open()

    def share(self, lines: Sequence[Line]) -> None:
        """Divides what is granted from now on among the collectors that are there."""
        live = [line for line in lines if line.is_live]
        steps = [line.env_steps for line in lines]
        self._num_live, self._base, self._bases = len(live), 0, {}
        if len(live) < len(lines) or max(steps) - min(steps) > 2 * self._rings[0].num_envs:
            self._base, self._bases = sum(steps), {line.index: line.env_steps for line in live}

    def announced(self, lines: Sequence[Line]) -> list[int]:
        """Returns the env steps to announce as those of each collector; their sum is what has come.

        They are equal once shares are others: the gate waits for the least, and anyone may have done it.
        """
        steps, count = [line.env_steps for line in lines], len(lines)
        return [(sum(steps) + count - 1 - index) // count for index in range(count)] if self._bases else steps

    def ask(self, line: Line) -> int | None:
        """Returns what the next call of a collector goes up to; None if it has to wait."""
        granted = self._control.leader[RankWord.GRANTED]
        more = -(-(len(self._rings) * granted - self._base) // self._num_live)
        target = self._bases.get(line.index, 0) + more
        if line.asked >= target:
            return None
        num_envs, room = self._rings[0].num_envs, target - line.asked
        most = self._most
        if not line.calls:  # half of it: the other half waits there while the learner gets these
            most = min(most, max(room // (2 * num_envs), 1) * num_envs)
        line.asked += min(room, most)
        return line.asked

    def take(self, line: Line, reply: Reply) -> bool:
        """Writes what has come; True if the learner has got more. Raises `RuntimeError` if it is not what is next."""
        ring = self._rings[line.index]
        if reply.first != ring.committed:
            raise RuntimeError(f"collector {line.index}: got rows from {reply.first} on, expected {ring.committed}")
        ring.write_slots(reply.rows, reply.num_complete)
        if not line.calls:  # a full reply, or a long call, ends before what was asked
            line.asked = reply.env_steps
        return reply.env_steps > line.env_steps

    def drop(self, line: Line) -> None:
        """Ends what is open of a collector that is lost."""
        self._rings[line.index].break_off()
        line.asked = line.env_steps


class RolloutFeed:
    """Feeds rollouts: their number is granted for every ring. A ring whose collector is lost takes those of others.

    Its methods are those of `ReplayFeed`.
    """

    def __init__(self, rings: Sequence[RolloutRing], control: ControlPage) -> None:
        self._rings, self._control, self._layout = rings, control, rings[0].layout
        self._lines: Sequence[Line] = ()
        self._rows = [np.zeros(self._layout.shape, np.float32) for _ in rings]  # of the open rollout of each collector
        self._into = dict[int, int]()  # the ring that the open rollout of each collector is meant for
        self._most = max(REPLY_BYTES // (4 * self._layout.num_envs * self._layout.width), 1)

    def start(self, line: Line) -> tuple[int, Float32]:
        return 0, np.empty((0, 0), np.float32)

    def share(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def announced(self, lines: Sequence[Line]) -> list[int]:
        return [line.env_steps for line in lines]

    def ask(self, line: Line) -> int | None:
        if not line.asked:
            lost = (other.index for other in self._lines if not other.is_live)
            free = [index for index in (line.index, *lost) if self._has_place(index)]
            if line.index in self._into or not free:  # in there: its last steps are on their way
                return None
            self._into[line.index] = free[0]
        num_steps = min(self._layout.length - line.asked, self._most)
        line.asked = (line.asked + num_steps) % self._layout.length
        return num_steps

    def _has_place(self, index: int) -> bool:
        ring = self._rings[index]
        number = ring.committed + list(self._into.values()).count(index)
        is_granted = number - ring.skipped < self._control.leader[RankWord.GRANTED]
        return is_granted and number - ring.taken < ring.num_slots

    def take(self, line: Line, reply: Reply) -> bool:
        rows, stop = self._rows[line.index], reply.first + len(reply.rows)
        rows[reply.first : stop] = reply.rows
        if reply.stamp is not None:
            # A rollout that a checkpoint has begun is for the collector's own ring.
            ring, stop = self._rings[self._into.pop(line.index, line.index)], 0
            ring.reserve()[:] = rows
            ring.commit(reply.stamp)
        if not line.calls:  # fewer steps than were asked: the call was long, or the rollout was broken off
            line.asked = stop
            if not stop:
                self._into.pop(line.index, None)
        return reply.stamp is not None or reply.env_steps > line.env_steps

    def drop(self, line: Line) -> None:
        self._into.pop(line.index, None)
        line.asked = 0
