"""Pictures: learning curves, and the timeline of a traced run, its window and what is drawn in it."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from offpolicy.analysis import plots
from offpolicy.analysis.plots import Segment, Track, aligned, typical_window
from offpolicy.errors import ConfigError

MS = 1_000_000
SVG = "{http://www.w3.org/2000/svg}"


def track(name: str, *phases: tuple[str, int]) -> Track:
    """A track from 0 on, of phases and their milliseconds; an iteration ends with each phase `train`."""
    segments, start = list[Segment](), 0
    for phase, ms in phases:
        segments.append(Segment(phase, start, start + ms * MS))
        start += ms * MS
    return Track(name, segments, [segment.stop_ns for segment in segments if segment.phase == "train"])


def test_the_window_lies_where_every_thread_is_known() -> None:
    learner = track("learner 0", *(part for ms in (9, 1, 2, 3, 9) for part in (("collector_wait", 1), ("train", ms))))
    brief = Track("collector 0", [Segment("env_step", 10 * MS, 18 * MS)])
    assert typical_window([learner, brief], 1) == (10 * MS, 12 * MS)
    with pytest.raises(ConfigError, match="--iterations: got 3, allowed less than the 3"):
        typical_window([learner, brief], 3)


def test_without_a_learners_iterations_there_is_nothing_to_draw() -> None:
    for tracks in ([], [track("collector 0", ("env_step", 5))]):
        with pytest.raises(ConfigError, match="--svg: the trace has no iterations of a learner"):
            typical_window(tracks, 1)


TRACKS = [
    track("learner 0", ("collector_wait", 4), ("train", 6), ("collector_wait", 4), ("train", 6)),
    track("learner 1", ("rank_barrier", 10), ("param_sync", 10)),
    track("packer 0", ("request_wait", 15), ("pack", 5)),
    track("collector 0", ("env_step", 3), ("learner_wait", 17)),
]


def texts_of(svg: bytes) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_the_timeline_names_every_track_and_every_phase_in_it() -> None:
    texts = texts_of(plots.timeline_svg(TRACKS, 0, 20 * MS, "a <title>"))
    assert {"learner 0", "learner 1", "packer 0", "collector 0", "a <title>", "ms"} <= set(texts)
    assert {segment.phase for track in TRACKS for segment in track.segments} <= set(texts)


def test_curves_are_interpolated_over_the_range_that_all_have() -> None:
    one = (np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 20.0]))
    other = (np.array([5.0, 30.0]), np.array([105.0, 130.0]))
    steps, values = aligned([one, other], end=15.0)
    assert (steps[0], steps[-1]) == (5.0, 15.0)
    assert np.allclose(values[1] - values[0], 100.0)
