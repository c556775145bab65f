"""Pictures: learning curves, and the timeline of a traced run, its window and what is drawn in it."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from offpolicy.analysis import plots
from offpolicy.analysis.plots import aligned, typical_window
from offpolicy.analysis.trace_reader import RECORD_TYPE, ThreadTrack
from offpolicy.errors import ConfigError
from offpolicy.timing.trace_writer import Kind, Mark

MS = 1_000_000
SVG = "{http://www.w3.org/2000/svg}"


def track(thread: str, *phases: tuple[str, int], start_ms: int = 0) -> ThreadTrack:
    """A track of phases and their milliseconds; an iteration ends with each phase `train`."""
    names, records, at = (str(Mark.ITERATION), *dict.fromkeys(phase for phase, _ in phases)), [], start_ms * MS
    for phase, ms in phases:
        records.append((at, ms * MS, names.index(phase), Kind.SPAN, 0))
        at += ms * MS
        if phase == "train":
            records.append((at, 0, 0, Kind.MARK, 0))
    return ThreadTrack(thread, thread, thread, 1, names, np.array(records, RECORD_TYPE), 0, 0)


def test_the_window_lies_where_every_thread_is_known() -> None:
    learner = track("learner 0", *(part for ms in (9, 1, 2, 3, 9) for part in (("collector_wait", 1), ("train", ms))))
    brief = track("collector 0", ("env_step", 8), start_ms=10)
    assert typical_window([learner, brief], 1) == (10 * MS, 12 * MS)
    with pytest.raises(ConfigError, match="--iterations: got 3, allowed less than the 3"):
        typical_window([learner, brief], 3)
    with pytest.raises(ConfigError, match="--svg: the trace has no iterations of a learner"):
        typical_window([brief], 1)


TRACKS = [
    track("learner 0", ("train", 1), ("collector_wait", 4), ("train", 6), ("collector_wait", 4), ("train", 6)),
    track("learner 1", ("rank_barrier", 10), ("param_sync", 11)),
    track("packer 0", ("request_wait", 15), ("pack", 6)),
    track("collector 0", ("env_step", 3), ("learner_wait", 18)),
]


def texts_of(svg: bytes) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_the_timeline_names_every_track_and_every_phase_in_it() -> None:
    texts = texts_of(plots.timeline_svg(TRACKS, 2, "a <title>"))
    assert {"learner 0", "learner 1", "packer 0", "collector 0", "a <title>", "ms"} <= set(texts)
    assert {name for track in TRACKS for name in track.names[1:]} <= set(texts)


def test_curves_are_interpolated_over_the_range_that_all_have() -> None:
    one = (np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 20.0]))
    other = (np.array([5.0, 30.0]), np.array([105.0, 130.0]))
    steps, values = aligned([one, other], end=15.0)
    assert (steps[0], steps[-1]) == (5.0, 15.0)
    assert np.allclose(values[1] - values[0], 100.0)
