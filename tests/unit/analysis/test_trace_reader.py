"""How much two sides worked at the same time, from their spans."""

from __future__ import annotations

import numpy as np
import pytest

from offpolicy.analysis.trace_reader import RECORD_TYPE, ThreadTrack, overlap_of, share_inside
from offpolicy.timing.ledger import trace_names
from offpolicy.timing.phases import CollectorPhase, LearnerPhase

MS = 1_000_000


def track(process: str, *spans: tuple[str, int, int]) -> ThreadTrack:
    """A thread whose phases lasted from one millisecond to another."""
    names = trace_names(LearnerPhase if process.startswith("learner") else CollectorPhase)
    rows = [(start * MS, (stop - start) * MS, names.index(name), 0, 0) for name, start, stop in spans]
    return ThreadTrack(process, process, process, 1, names, np.array(rows, dtype=RECORD_TYPE), 0, 0)


LEARNER = track("learner 0", ("collector_wait", 0, 10), ("train", 10, 30), ("collector_wait", 30, 40), ("log", 40, 50))


def test_overlap_is_the_share_of_the_lesser_side_that_was_hidden() -> None:
    for ratio, *spans in (
        (0.0, ("env_step", 0, 10), ("learner_wait", 10, 30), ("env_step", 30, 40), ("learner_wait", 40, 50)),
        (1.0, ("env_step", 0, 30), ("learner_wait", 30, 40), ("env_step", 40, 50)),
        (0.5, ("learner_wait", 0, 20), ("env_step", 20, 40), ("learner_wait", 40, 50)),
    ):
        overlap = overlap_of([LEARNER], [track("collector 0", *spans)])
        assert overlap is not None
        assert (overlap.one_ns, overlap.ratio) == (30 * MS, pytest.approx(ratio))


def test_two_collectors_are_busy_when_either_is() -> None:
    first = track("collector 0", ("env_step", 0, 5), ("learner_wait", 5, 50))
    second = track("collector 1", ("learner_wait", 0, 3), ("env_step", 3, 12), ("learner_wait", 12, 50))
    overlap = overlap_of([LEARNER], [first, second])
    assert overlap is not None
    assert (overlap.other_ns, overlap.both_ns) == (12 * MS, 2 * MS)


def test_only_the_time_in_which_both_are_known_counts() -> None:
    late = track("collector 0", ("env_step", 20, 90))
    overlap = overlap_of([LEARNER], [late])
    assert overlap is not None
    assert (overlap.one_ns, overlap.other_ns, overlap.both_ns) == (20 * MS, 30 * MS, 20 * MS)
    assert overlap_of([LEARNER], [track("collector 0", ("env_step", 60, 90))]) is None


def test_the_learners_wait_lies_inside_the_collectors_work() -> None:
    collector = track("collector 0", ("env_step", 0, 9), ("learner_wait", 9, 30), ("env_step", 30, 50))
    share = share_inside(LEARNER.spans("collector_wait"), [collector])
    assert share == pytest.approx(19 / 20)
