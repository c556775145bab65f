"""Lines on several ranks; how they fit into the panel is in test_panel.py."""

from __future__ import annotations

import dataclasses

from offpolicy.logger.rank_lines import rank_lines
from offpolicy.logger.record import Record, RunHeader
from offpolicy.timing.phases import PackerPhase

TWO: Record = {f"rank/rank_barrier_{name}_ms": 0.25 for name in ("min", "mean", "max")} | {"rank/num": 2}


def shown(record: Record, header: RunHeader, *, is_broad: bool) -> list[str]:
    return [line.plain for line in rank_lines(record, header, is_broad=is_broad)]


def test_one_rank_without_a_packer_has_no_line(header: RunHeader) -> None:
    idle: Record = {f"prefetch/{phase}_ms": 0.0 for phase in PackerPhase}
    assert shown(TWO | idle, header, is_broad=True) == []


def test_the_packer_of_one_rank_has_a_line_where_there_is_room(header: RunHeader) -> None:
    packer: Record = {f"prefetch/{phase}_ms": 1.5 for phase in PackerPhase}
    (line,) = shown(packer, header, is_broad=True)
    assert line.startswith("packer request wait 1.50   rows wait 1.50")
    assert shown(packer, header, is_broad=False) == []


def test_a_rank_without_an_iteration_has_no_line(header: RunHeader) -> None:
    three = dataclasses.replace(header, world_size=3)
    lines = shown(TWO | {"rank/2/iter_ms": 8.0, "rank/2/cpu_pct": 50.0}, three, is_broad=True)
    assert lines == [
        "ranks 2 of 3: barrier 0.2/0.2/0.2 ms (min/mean/max), -",
        "rank 2 train -  collector wait -  barrier -  sync -  wall 8.00  late -  cpu 50.0%",
    ]


def test_two_ranks_that_both_worked_have_one_line_where_there_is_little_room(header: RunHeader) -> None:
    two = dataclasses.replace(header, world_size=2)
    (line,) = shown(TWO | {"rank/late_ms": 0.5}, two, is_broad=False)
    assert line == "ranks 2: barrier 0.2/0.2/0.2 ms (min/mean/max), none is late"


def test_the_rank_that_is_late_is_named(header: RunHeader) -> None:
    two = dataclasses.replace(header, world_size=2)
    late: Record = {"rank/straggler": 1, "rank/late_ms": 2.5, "rank/late_share": 0.94}
    (line,) = shown(TWO | late, two, is_broad=False)
    assert line.endswith("rank 1 late 2.5 ms (94%)")


def test_of_many_ranks_the_first_eight_have_lines(header: RunHeader) -> None:
    many = dataclasses.replace(header, world_size=16)
    lines = shown(TWO | {f"rank/{rank}/iter_ms": 8.0 for rank in range(16)}, many, is_broad=True)
    assert [line.split(" train")[0] for line in lines[1:]] == [f"rank {rank}" for rank in range(8)]
