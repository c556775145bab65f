"""The timeline: what is recorded of a thread, which part of a run is shown, and what is drawn of it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import timeline
from benchmarks.timeline import Lane, RecordedLedger, Segment
from offpolicy.config import RunConfig
from offpolicy.ipc.child import ChildContext
from offpolicy.ranks.place import Place
from offpolicy.timing import ledger
from offpolicy.timing.clock import FakeClock
from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase
from offpolicy.types import SpaceSpec
from runners.wiring import Assignment

MS = 1_000_000


@pytest.fixture(autouse=True)
def _no_ledger_is_kept() -> Iterator[None]:
    yield
    RecordedLedger.made.clear()


def lane(name: str, *phases: tuple[str, int]) -> Lane:
    """A lane from 0 on, of phases and their milliseconds."""
    segments, start = [], 0
    for phase, ms in phases:
        segments.append(Segment(phase, start, start + ms * MS))
        start += ms * MS
    return Lane(name, segments)


def iterations(name: str, *train_ms: int) -> Lane:
    """A learner whose iterations wait for 1 ms and then train."""
    return lane(name, *(part for ms in train_ms for part in (("collector_wait", 1), ("train", ms))))


def test_the_segments_of_a_thread_are_contiguous_and_disjoint() -> None:
    clock = FakeClock()
    recorded = RecordedLedger(LearnerPhase, clock)
    for _ in range(3):
        with recorded.phase(LearnerPhase.TRAIN):
            clock.advance(5)
            with recorded.phase(LearnerPhase.RANK_BARRIER):
                clock.advance(2)
            clock.advance(1)
        clock.advance(4)
        recorded.close()
    segments = timeline.to_segments(recorded.switches)
    assert [(one.phase, one.stop_ns - one.start_ns) for one in segments[:4]] == [
        ("train", 5), ("rank_barrier", 2), ("train", 1), ("other", 4),
    ]  # fmt: skip
    assert all(before.stop_ns == after.start_ns for before, after in pairwise(segments))


def test_a_recorded_ledger_accounts_like_any_other() -> None:
    clock = FakeClock()
    recorded = RecordedLedger(CollectorPhase, clock)
    recorded.end_warmup()
    with recorded.phase(CollectorPhase.ENV_STEP):
        clock.advance(7)
    account = recorded.account()
    assert (account.wall_ns, account.phases_ns["env_step"]) == (7, 7)
    assert recorded.kind == "collector"


def working_main(context: ChildContext) -> None:
    """A child that works for a moment and fails."""
    own = ledger.make_ledger(LearnerPhase, is_enabled=True)
    with own.phase(LearnerPhase.TRAIN):
        raise ArithmeticError


def test_a_child_leaves_its_lanes_in_the_run_directory_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "Ledger", ledger.Ledger)  # put back at the end
    monkeypatch.setattr(timeline, "resolve", {"runners.multi_gpu:learner_main": working_main}.get)
    cfg = RunConfig.from_mapping({"runner": {"name": "multi_gpu"}})
    job = Assignment(cfg, SpaceSpec(3, 1, (-1.0,), (1.0,)), str(tmp_path), 0, None, Place(), 0)
    with pytest.raises(ArithmeticError):
        timeline.child_main(ChildContext("learner", 1, job.to_json(), {}, -1))
    [own] = timeline.read_lanes(tmp_path)
    assert own.name == "learner 1"
    assert [one.phase for one in own.segments] == ["train"]


def test_a_switch_to_the_open_phase_ends_no_segment() -> None:
    assert timeline.to_segments([(0, "a"), (3, "b"), (5, "b"), (9, "a")]) == [Segment("a", 0, 3), Segment("b", 3, 9)]


def test_the_window_is_that_of_median_length() -> None:
    learner = iterations("learner 0", 5, 90, 6, 7, 8)
    begin, end = timeline.typical_window([learner, lane("collector 0", ("env_step", 200))], 1)
    assert (begin // MS, end // MS) == (97, 104)


def test_the_window_lies_where_every_lane_is_known() -> None:
    learner = iterations("learner 0", 9, 1, 2, 3, 9)
    brief = Lane("collector 0", [Segment("env_step", 10 * MS, 18 * MS)])
    assert timeline.typical_window([learner, brief], 1) == (10 * MS, 12 * MS)
    with pytest.raises(ValueError, match="3 iterations were recorded, 4 are needed"):
        timeline.typical_window([learner, brief], 3)


def test_a_packer_is_read_below_its_learner_and_collectors_come_last(tmp_path: Path) -> None:
    for name in ("collector 0", "packer 1", "learner 10", "learner 1", "packer 0", "learner 0", "learner 2"):
        record = {"lane": name, "switches": [[0, "train"], [5, "log"]]}
        (tmp_path / f"timeline {name}.json").write_text(json.dumps(record))
    lanes = timeline.read_lanes(tmp_path)
    assert [one.name for one in lanes] == [
        "learner 0", "packer 0", "learner 1", "packer 1", "learner 2", "learner 10", "collector 0",
    ]  # fmt: skip
    assert lanes[0].segments == [Segment("train", 0, 5)]


LANES = [
    lane("learner 0", ("collector_wait", 4), ("train", 6), ("collector_wait", 4), ("train", 6)),
    lane("learner 1", ("rank_barrier", 10), ("param_sync", 10)),
    lane("packer 0", ("request_wait", 15), ("pack", 5)),
    lane("collector 0", ("env_step", 3), ("learner_wait", 17)),
]


def test_the_drawing_names_every_lane_and_every_phase_in_it() -> None:
    svg = timeline.draw(LANES, 0, 20 * MS, "a <title>")
    texts = [element.text for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"learner 0", "learner 1", "packer 0", "collector 0", "a <title>", "ms"} <= set(texts)
    phases = {segment.phase for one in LANES for segment in one.segments}
    assert phases <= set(texts)


def test_the_boxes_of_a_lane_fill_it_from_edge_to_edge() -> None:
    svg = timeline.draw(LANES[:1], 0, 20 * MS, "")
    boxes = [tuple(map(float, box)) for box in re.findall(r"M([\d.]+) [\d.]+h([\d.]+)v", svg)]
    boxes.sort()
    left, right = timeline.MARGIN, timeline.WIDTH - timeline.RIGHT
    assert boxes[0][0] == left
    for (start, width), (following, _) in pairwise([*boxes, (right, 0.0)]):
        assert start + width == pytest.approx(following, abs=0.11)
    assert boxes[1][1] / boxes[0][1] == pytest.approx(6 / 4, rel=0.01)


def test_what_lies_outside_the_window_is_cut_off() -> None:
    inside = timeline.clipped(LANES[0], 5 * MS, 12 * MS)
    assert inside.segments == [Segment("train", 5 * MS, 10 * MS), Segment("collector_wait", 10 * MS, 12 * MS)]


def test_a_box_too_narrow_for_its_name_has_none() -> None:
    learner = lane("learner 0", ("collector_wait", 1), ("train", 99))
    svg = timeline.draw([learner], 0, 100 * MS, "")
    assert (svg.count(">collector_wait<"), svg.count(">train<")) == (1, 2)  # once in the legend


def test_every_phase_has_a_colour() -> None:
    phases = {str(phase) for phases in (LearnerPhase, CollectorPhase, PackerPhase) for phase in phases}
    assert phases == set(timeline.COLORS)
