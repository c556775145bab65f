"""Pictures: learning curves, and the timeline of a traced run, its window and what is drawn in it."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure

from offpolicy.analysis import plots
from offpolicy.analysis.plots import Segment, Track, aligned, clipped, curves_file, tracks_of, typical_window
from offpolicy.errors import ConfigError
from offpolicy.timing.ledger import trace_names
from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase
from offpolicy.timing.trace_reader import RECORD_TYPE, ThreadTrack
from offpolicy.timing.trace_writer import Kind, Mark

MS = 1_000_000
SVG = "{http://www.w3.org/2000/svg}"


def track(name: str, *phases: tuple[str, int]) -> Track:
    """A track from 0 on, of phases and their milliseconds; an iteration ends with each phase `train`."""
    segments, start = list[Segment](), 0
    for phase, ms in phases:
        segments.append(Segment(phase, start, start + ms * MS))
        start += ms * MS
    return Track(name, segments, [segment.stop_ns for segment in segments if segment.phase == "train"])


def iterations(name: str, *train_ms: int) -> Track:
    """A learner whose iterations wait for 1 ms and then train."""
    return track(name, *(part for ms in train_ms for part in (("collector_wait", 1), ("train", ms))))


def test_a_track_holds_the_spans_of_a_thread_in_their_order_and_its_boundaries() -> None:
    names = trace_names(LearnerPhase)
    rows = [("train", 3, 5, Kind.SPAN), ("log", 8, 1, Kind.SPAN), (Mark.ITERATION, 9, 1, Kind.MARK)]
    rows.append(("train", 9, 2, Kind.SPAN))
    records = np.array([(at, value, names.index(name), kind, 0) for name, at, value, kind in rows], dtype=RECORD_TYPE)
    traced = ThreadTrack("learner-0", "learner 0", "learner 0", 1, names, records, 0, 0)
    [own] = tracks_of([traced])
    assert own.segments == [Segment("train", 3, 8), Segment("log", 8, 9), Segment("train", 9, 11)]
    assert (own.name, own.kind, own.boundaries) == ("learner 0", "learner", [9])


def test_a_thread_without_an_account_has_no_track() -> None:
    records = np.array([(0, 1, 0, Kind.COUNTER, 0)], dtype=RECORD_TYPE)
    assert tracks_of([ThreadTrack("supervisor", "supervisor", "supervisor", 1, ("debt",), records, 0, 0)]) == []


def test_the_window_is_that_of_median_length() -> None:
    learner = iterations("learner 0", 5, 90, 6, 7, 8)
    begin, end = typical_window([learner, track("collector 0", ("env_step", 200))], 1)
    assert (begin // MS, end // MS) == (104, 112)


def test_the_window_lies_where_every_thread_is_known() -> None:
    learner = iterations("learner 0", 9, 1, 2, 3, 9)
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


def test_the_same_trace_gives_the_same_timeline() -> None:
    assert plots.timeline_svg(TRACKS, 0, 20 * MS, "") == plots.timeline_svg(TRACKS, 0, 20 * MS, "")


def test_what_lies_outside_the_window_is_cut_off() -> None:
    inside = clipped(TRACKS[0], 5 * MS, 12 * MS)
    assert inside.segments == [Segment("train", 0, 5 * MS), Segment("collector_wait", 5 * MS, 7 * MS)]
    assert inside.boundaries == [5 * MS]


def test_a_box_too_narrow_for_its_name_has_none() -> None:
    learner = track("learner 0", ("collector_wait", 1), ("train", 99))
    texts = texts_of(plots.timeline_svg([learner], 0, 100 * MS, ""))
    assert (texts.count("collector_wait"), texts.count("train")) == (1, 2)  # once in the legend


def test_a_box_too_narrow_to_be_seen_is_left_out() -> None:
    assert clipped(track("learner 0", ("log", 1), ("train", 9999)), 0, 10000 * MS).segments[0].phase == "train"


def test_every_phase_has_a_colour() -> None:
    phases = {str(phase) for phases in (LearnerPhase, CollectorPhase, PackerPhase) for phase in phases}
    assert phases == set(plots.COLORS)


def test_a_label_is_drawn_as_it_is_written() -> None:
    curve = (np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    svg = curves_file({"_cost $5 $x^2$": [curve], "b": [curve]}, "title", is_svg=True)
    assert " _cost $5 $x^2$" in texts_of(svg)


def test_curves_are_interpolated_over_the_range_that_all_have() -> None:
    one = (np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 20.0]))
    other = (np.array([5.0, 30.0]), np.array([105.0, 130.0]))
    steps, values = aligned([one, other], end=15.0)
    assert (steps[0], steps[-1]) == (5.0, 15.0)
    assert np.allclose(values[1] - values[0], 100.0)


def test_one_curve_keeps_its_points() -> None:
    steps, values = aligned([(np.array([1.0, 2.0, 9.0]), np.array([3.0, 4.0, 5.0]))], end=5.0)
    assert (steps.tolist(), values.tolist()) == ([1.0, 2.0], [[3.0, 4.0]])


def test_the_axes_of_a_picture_have_rounded_places() -> None:
    """The last bits of a layout differ between processes: a committed picture would not be made again."""
    figure = Figure(figsize=(3, 2), layout="constrained")
    for axes in figure.subplots(2, 1):
        axes.set_title("a title")
    plots.picture_file(figure, is_svg=True)
    places = [bound for axes in figure.axes for bound in axes.get_position().bounds]
    assert len(set(places)) > 4  # the layout has placed them
    assert places == pytest.approx([round(place, 6) for place in places], abs=1e-15)
