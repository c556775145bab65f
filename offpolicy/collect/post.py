"""Work at an episode's end, in one worker process, while the next episodes go on.

`eval.hook=module:function` names the work: it is called with an `Episode`, and what it returns is not looked at. A hook
that raises, dies or is silent costs its own episode's post-processing, which is counted and told once; the episode and
its return are in the evaluation already. The queue is bounded: whoever is ahead of the hook waits, and that wait has a
phase of its own. Pipes only: no primitive that a killed worker could leave locked.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import numpy as np

from offpolicy.timing.trace_reader import Overlap, Times, total_ns, union
from offpolicy.types import Float32, Float64

_SIZES = struct.Struct("<QQ")  # of the head and of the arrays of an encoded episode
_ARRAYS = {"obs": np.float32, "action": np.float32, "reward": np.float64}


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished episode of an evaluation, as the hook sees it. L is its length."""

    index: int  # of the evaluation, from 0: episode i begins with the same seed in every evaluation
    env_steps: int  # of the training, when the policy was as it is here
    policy_version: int  # of the published weights; 0 where they are those of a checkpoint
    ep_return: float  # raw, undiscounted
    length: int
    success: float  # 1 or 0 if the environment says so, else NaN
    measure: float  # what `env.measure` names, else NaN
    terminated: bool
    truncated: bool
    obs: Float32  # [L + 1, O] flattened, the final one included
    action: Float32  # [L, A] in [-1, 1], or the numbers of discrete ones
    reward: Float64  # [L] raw


def encode(episode: Episode) -> bytes:
    """The episode as bytes: two sizes, a JSON head, the arrays one after another."""
    arrays = {name: np.ascontiguousarray(getattr(episode, name), kind) for name, kind in _ARRAYS.items()}
    plain = {spec.name: getattr(episode, spec.name) for spec in fields(episode) if spec.name not in _ARRAYS}
    head = json.dumps(plain | {"shapes": {name: array.shape for name, array in arrays.items()}}).encode()
    body = b"".join(array.tobytes() for array in arrays.values())
    return _SIZES.pack(len(head), len(body)) + head + body


class Readable(Protocol):
    """A binary stream that reads as much as it is asked for, or less at its end."""

    def read(self, size: int, /) -> bytes: ...


def decode(source: Readable) -> Episode | None:
    """The next episode of a stream; None at its end, also in the middle of one: its sender is gone."""
    sizes = source.read(_SIZES.size)
    if len(sizes) < _SIZES.size:
        return None
    head_size, body_size = _SIZES.unpack(sizes)
    head, body = source.read(head_size), source.read(body_size)
    if len(body) < body_size or len(head) < head_size:
        return None
    plain: dict[str, Any] = json.loads(head)
    shapes, start = plain.pop("shapes"), 0
    arrays: dict[str, Any] = {}  # Any: as the fields of an episode
    for name, kind in _ARRAYS.items():
        count = int(np.prod(shapes[name]))
        arrays[name] = np.frombuffer(body, kind, count, start).reshape(shapes[name])
        start += arrays[name].nbytes
    return Episode(**plain, **arrays)


class Interval(NamedTuple):
    """When something was done, in ns of the machine's monotonic clock, which all its processes share."""

    start_ns: int
    end_ns: int


def overlap(rollouts: Sequence[Interval], posts: Sequence[Interval], pauses: Sequence[Interval] = ()) -> float | None:
    """How much of the shorter of the two kinds of work was done during the other: 0, one after the other; 1, all of it.

    `(busy_roll + busy_post - makespan) / min(busy_roll, busy_post)`, where the makespan is the time in which at least
    one of them was busy; None where one of the two has done nothing. In the pauses, none of which overlap, no episode
    went on.
    """
    if not rollouts or not posts:
        return None
    begin = min(each.start_ns for each in (*rollouts, *posts))
    end = max(each.end_ns for each in (*rollouts, *posts))
    edges = [begin, *(edge for pause in sorted(pauses) for edge in pause), end]
    between = [union([_times(rollouts)], window) for window in zip(edges[::2], edges[1::2], strict=True)]
    played, posted = union(between, (begin, end)), union([_times(posts)], (begin, end))
    shared = Overlap(total_ns(played), total_ns(posted), total_ns(union([played, posted], (begin, end))))
    return shared.ratio if min(shared.one_ns, shared.other_ns) else None


def _times(intervals: Sequence[Interval]) -> tuple[Times, Times]:
    starts, stops = np.array(intervals, np.int64).T
    return starts, stops
