"""The timeline: what is recorded of a thread, which part of a run is shown, and what is drawn of it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest

from offpolicy.analysis import timeline
from offpolicy.analysis.timeline import Segment, Strip, to_strips
from offpolicy.errors import ConfigError
from offpolicy.timing.ledger import trace_names
from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase
from offpolicy.timing.trace_reader import RECORD_TYPE, Lane
from offpolicy.timing.trace_writer import Kind, Mark

MS = 1_000_000


def strip(name: str, *phases: tuple[str, int]) -> Strip:
    """A strip from 0 on, of phases and their milliseconds; an iteration ends with each phase `train`."""
    segments, start = list[Segment](), 0
    for phase, ms in phases:
        segments.append(Segment(phase, start, start + ms * MS))
        start += ms * MS
    return Strip(name, segments, [segment.stop_ns for segment in segments if segment.phase == "train"])


def iterations(name: str, *train_ms: int) -> Strip:
    """A learner whose iterations wait for 1 ms and then train."""
    return strip(name, *(part for ms in train_ms for part in (("collector_wait", 1), ("train", ms))))


def test_a_strip_holds_the_spans_of_a_thread_in_their_order_and_its_boundaries() -> None:
    names = trace_names(LearnerPhase)
    rows = [("train", 3, 5, Kind.SPAN), ("log", 8, 1, Kind.SPAN), (Mark.ITERATION, 9, 1, Kind.MARK)]
    rows.append(("train", 9, 2, Kind.SPAN))
    records = np.array([(at, value, names.index(name), kind, 0) for name, at, value, kind in rows], dtype=RECORD_TYPE)
    traced = Lane("learner-0", "learner 0", "learner 0", 1, names, records, 0, 0)
    [own] = to_strips([traced])
    assert own.segments == [Segment("train", 3, 8), Segment("log", 8, 9), Segment("train", 9, 11)]
    assert (own.name, own.kind, own.boundaries) == ("learner 0", "learner", [9])


def test_a_thread_without_an_account_has_no_strip() -> None:
    records = np.array([(0, 1, 0, Kind.COUNTER, 0)], dtype=RECORD_TYPE)
    assert to_strips([Lane("supervisor", "supervisor", "supervisor", 1, ("debt",), records, 0, 0)]) == []


def test_the_window_is_that_of_median_length() -> None:
    learner = iterations("learner 0", 5, 90, 6, 7, 8)
    begin, end = timeline.typical_window([learner, strip("collector 0", ("env_step", 200))], 1)
    assert (begin // MS, end // MS) == (104, 112)


def test_the_window_lies_where_every_thread_is_known() -> None:
    learner = iterations("learner 0", 9, 1, 2, 3, 9)
    brief = Strip("collector 0", [Segment("env_step", 10 * MS, 18 * MS)])
    assert timeline.typical_window([learner, brief], 1) == (10 * MS, 12 * MS)
    with pytest.raises(ConfigError, match="--iterations: got 3, allowed less than the 3"):
        timeline.typical_window([learner, brief], 3)


def test_without_a_learners_iterations_there_is_nothing_to_draw() -> None:
    for strips in ([], [strip("collector 0", ("env_step", 5))]):
        with pytest.raises(ConfigError, match="--svg: the trace has no iterations of a learner"):
            timeline.typical_window(strips, 1)


STRIPS = [
    strip("learner 0", ("collector_wait", 4), ("train", 6), ("collector_wait", 4), ("train", 6)),
    strip("learner 1", ("rank_barrier", 10), ("param_sync", 10)),
    strip("packer 0", ("request_wait", 15), ("pack", 5)),
    strip("collector 0", ("env_step", 3), ("learner_wait", 17)),
]


def test_the_drawing_names_every_lane_and_every_phase_in_it() -> None:
    svg = timeline.draw(STRIPS, 0, 20 * MS, "a <title>")
    texts = [element.text for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"learner 0", "learner 1", "packer 0", "collector 0", "a <title>", "ms"} <= set(texts)
    phases = {segment.phase for one in STRIPS for segment in one.segments}
    assert phases <= set(texts)


def test_the_boxes_of_a_lane_fill_it_from_edge_to_edge() -> None:
    svg = timeline.draw(STRIPS[:1], 0, 20 * MS, "")
    boxes = [tuple(map(float, box)) for box in re.findall(r"M([\d.]+) [\d.]+h([\d.]+)v", svg)]
    boxes.sort()
    left, right = timeline.MARGIN, timeline.WIDTH - timeline.RIGHT
    assert boxes[0][0] == left
    for (start, width), (following, _) in pairwise([*boxes, (right, 0.0)]):
        assert start + width == pytest.approx(following, abs=0.11)
    assert boxes[1][1] / boxes[0][1] == pytest.approx(6 / 4, rel=0.01)


def test_what_lies_outside_the_window_is_cut_off() -> None:
    inside = timeline.clipped(STRIPS[0], 5 * MS, 12 * MS)
    assert inside.segments == [Segment("train", 5 * MS, 10 * MS), Segment("collector_wait", 10 * MS, 12 * MS)]


def test_a_box_too_narrow_for_its_name_has_none() -> None:
    learner = strip("learner 0", ("collector_wait", 1), ("train", 99))
    svg = timeline.draw([learner], 0, 100 * MS, "")
    assert (svg.count(">collector_wait<"), svg.count(">train<")) == (1, 2)  # once in the legend


def test_every_phase_has_a_colour() -> None:
    phases = {str(phase) for phases in (LearnerPhase, CollectorPhase, PackerPhase) for phase in phases}
    assert phases == set(timeline.COLORS)
