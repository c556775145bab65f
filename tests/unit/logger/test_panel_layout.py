"""The layout of the panel in terminals of every size, and the rows of its account."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from offpolicy.logger.metrics import METRICS, MetricClass
from offpolicy.logger.panel_layout import COLLECTOR, LEARNER, Row, Side, account_rows, render
from offpolicy.logger.panel_lines import LEGEND, Shown
from offpolicy.logger.record import Record, RunHeader
from offpolicy.model.bottleneck import Advice, Bottleneck, Detail, Verdict
from offpolicy.timing.phases import CollectorPhase, LearnerPhase

SIZES = [(80, 24), (160, 50), (100, 30), (60, 20), (80, 20), (60, 40), (100, 40), (140, 40), (120, 20), (250, 70)]
SEVEN = ("Collector Wait", "Replay Batch Wait", "H2D Copy", "Rank Barrier", "Sync Coordination", "Train", "Param Sync")
FIRST = ("return", "thru", "bottleneck", "try")

VERDICT = Verdict(
    Bottleneck.LEARNER, LearnerPhase.TRAIN, "it is busy", (Advice("threads.learner=2: faster"), Advice("do less")), 0.92
)


def shown_of(record: Record, header: RunHeader, verdict: Verdict = VERDICT, *, is_full: bool = False) -> Shown:
    shown = Shown(header, is_full)
    for number in range(8):
        shown.add({**record, "rollout/ep_rew_mean": -1000.0 + 50 * number}, verdict)
    return shown


def drawn(shown: Shown, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(render(shown, width, height))
    return capture.get().rstrip("\n").split("\n")


def lines_of(record: Record, header: RunHeader, width: int, height: int, *, is_full: bool = False) -> list[str]:
    return drawn(shown_of(record, header, is_full=is_full), width, height)


@pytest.mark.promise("panel")
@pytest.mark.parametrize("is_full", [False, True])
def test_the_panel_never_exceeds_its_terminal(record: Record, header: RunHeader, is_full: bool) -> None:
    two = replace(header, world_size=2)
    huge = {key: -1.23456789e12 for key, value in record.items() if isinstance(value, float)}
    for width, height in SIZES:
        for known in ({}, LATE, ON_DEVICE, CORES, LATE | ON_DEVICE | CORES | EACH_RANK, huge):
            lines = lines_of(record | known, two, width, height, is_full=is_full)
            assert len(lines) <= height
            assert {cell_len(line) for line in lines} == {width}


@pytest.mark.promise("panel")
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_what_people_look_at_and_the_rows_of_the_contract_stand_in_every_size(
    record: Record, header: RunHeader, width: int, height: int
) -> None:
    lines = [line.strip("│ ") for line in lines_of(record, header, width, height)]
    assert [line.split()[0] for line in lines[2:6]] == list(FIRST)
    assert "steps" in lines[1]
    for row in SEVEN:
        assert sum(line.startswith(row) for line in lines) == 1
    assert "the learner: Train takes 92% of its time" in lines[4]
    assert "try        threads.learner=2: faster" in lines[5]


@pytest.mark.parametrize(("width", "height"), [(100, 35), (160, 50)])
def test_the_full_panel_has_every_row_of_the_table(record: Record, header: RunHeader, width: int, height: int) -> None:
    full, usual = ("\n".join(lines_of(record, header, width, height, is_full=is_full)) for is_full in (True, False))
    timing = [metric.row for metric in METRICS.values() if metric.kind is MetricClass.EXCLUSIVE]
    assert len(timing) == 21
    for row in (*timing, "Iter Wall", "Cycle", "Actor Loss", "Critic Loss"):
        assert row in full
    assert "Evaluation" not in usual


@pytest.mark.parametrize(("width", "height"), [(40, 12), (59, 24), (80, 19)])
def test_below_60_by_20_there_is_the_plain_line(record: Record, header: RunHeader, width: int, height: int) -> None:
    lines = lines_of(record, header, width, height)
    assert "".join(lines).startswith("10% step=2000/20000 ret=-650.0 thru=")
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("verdict", [VERDICT, replace(VERDICT, detail=Detail.LAUNCH_BOUND)])
def test_only_the_row_of_the_bottleneck_is_highlighted(record: Record, header: RunHeader, verdict: Verdict) -> None:
    console = Console(width=80, height=24, color_system="standard", force_terminal=True)
    with console.capture() as capture:
        console.print(render(shown_of(record, header, verdict), 80, 24))
    lit = [line for line in capture.get().split("\n") if "\x1b[1;33m" in line]
    assert ["the learner" in line or line.find("Train ") > 0 for line in lit] == [True, True]


LATE: Record = {
    "rank/num": 2, "rank/straggler": 1, "rank/late_ms": 40.4, "rank/late_share": 0.98,
    "rank/rank_barrier_min_ms": 0.1, "rank/rank_barrier_mean_ms": 20.26, "rank/rank_barrier_max_ms": 40.5,
}  # fmt: skip
OF_RANKS = "ranks 2: barrier 0.1/20.3/40.5 ms (min/mean/max), rank 1 late 40.4 ms (98%)"


EACH_RANK: Record = {
    f"rank/{rank}/{name}": value + rank
    for rank in range(2)
    for name, value in (
        ("train_ms", 6.5), ("collector_wait_ms", 0.5), ("rank_barrier_ms", 0.25), ("param_sync_ms", 0.75),
        ("iter_ms", 8.0), ("late_ms", 0.0), ("cpu_pct", 97.0),
    )
}  # fmt: skip


ON_DEVICE: Record = {
    "device/train_ms": 5.25, "device/h2d_ms": 0.02, "device/h2d_hidden_ms": 0.5, "device/busy_share": 0.8125,
    "device/launch_bound": 0.03,
}  # fmt: skip
OF_DEVICE = "device train 5.25 ms   h2d 0.02+0.50 hidden   busy 81.2%   launch-bound 3.0%"


CORES: Record = {
    "cores/capacity": 2.0, "cores/learner_ms_per_s": 980.0, "cores/openmp_ms_per_s": 310.0,
    "cores/supervisor_ms_per_s": 4.0, "cores/others_ms_per_s": -3.0, "cores/idle_ms_per_s": 600.0,
    "system/memory_gib": 3.1, "system/memory_total_gib": 7.8,
}  # fmt: skip


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 24), (160, 50)])
def test_ranks_and_a_device_add_a_line_each_and_no_other_line_is_lost(
    record: Record, header: RunHeader, width: int, height: int
) -> None:
    two = replace(header, world_size=2)
    usual, late, on_device = (
        "\n".join(lines_of(record | known, run, width, height))
        for known, run in (({}, header), (LATE, two), (ON_DEVICE, header))
    )
    assert f"│ {OF_RANKS} " in late
    assert OF_DEVICE in on_device
    assert "launch-bound" not in usual
    for shown in (late, on_device):
        for text in (*SEVEN, "Iter Wall", "Cycle", "thru", "utd", "bottleneck", "try"):
            assert text in shown


def test_a_roomy_panel_has_a_line_for_each_rank_and_one_for_the_cores(record: Record, header: RunHeader) -> None:
    shown = "\n".join(lines_of(record | LATE | EACH_RANK | CORES, replace(header, world_size=2), 140, 45))
    assert "rank 1 train 7.50  collector wait 1.50  barrier 1.25  sync 1.75  wall 9.00  late 1.00  cpu 98.0%" in shown
    assert "cores learner 0.98  " in shown
    assert "because    it is busy" in shown
    assert "or         do less" in shown


def test_the_title_shows_collectors_and_an_unusual_runner_and_no_markup(record: Record, header: RunHeader) -> None:
    usual = replace(header, num_envs=8)
    several = replace(usual, num_collectors=2, runner="multi_gpu")
    assert "| alternate | 8 envs ─" in lines_of(record, usual, 80, 24)[0]
    assert "| alternate | 2 collectors x 8 envs | multi_gpu ─" in lines_of(record, several, 80, 24)[0]
    assert "[red]X[/red]-v0" in lines_of(record, replace(header, env_id="[red]X[/red]-v0"), 80, 24)[0]


def test_an_empty_record_shows_dashes(header: RunHeader) -> None:
    shown = "\n".join(lines_of({"env_steps": 0}, header, 80, 24))
    assert "│ Train                    -    -" in shown
    assert "thru              - env steps/s" in shown


def test_help_explains_every_short_name_in_80_by_24(record: Record, header: RunHeader) -> None:
    shown = shown_of(record, header)
    shown.is_helping = True
    lines = drawn(shown, 80, 24)
    assert len(lines) <= 24
    assert "…" not in "".join(lines)
    for name, meaning in LEGEND.items():
        assert any(line.startswith(f"│ {name} ") and meaning in line for line in lines)


SEEN = {f"timing/learner_{phase}_ms" for phase in ("replay_sample", "weight_publish", "other")}


def rows_of(side: Side, record: Record, header: RunHeader, room: int = 30) -> dict[str, Row]:
    rows = account_rows(side, Shown(header, record=record, seen=SEEN, verdict=OTHER), room)
    return {row.name: row for row in rows}


OTHER = Verdict(Bottleneck.COLLECTOR, CollectorPhase.OTHER, "")


@pytest.mark.parametrize("room", [9, 10, 11, 30])
def test_the_rows_sum_to_the_wall_whatever_the_room(record: Record, header: RunHeader, room: int) -> None:
    *rows, wall = rows_of(LEARNER, record, header, room).values()
    assert len(rows) < room
    assert wall.name == "Iter Wall"
    assert sum(row.ms or 0.0 for row in rows) == pytest.approx(wall.ms, abs=1e-6)


def test_where_a_phase_cannot_occur_it_says_why(record: Record, header: RunHeader) -> None:
    on_cpu = rows_of(LEARNER, record, replace(header, device="cpu"))
    assert [on_cpu[name].note for name in SEVEN] == ["", "", "CPU", "one rank", "", "", "one rank"]
    many = replace(header, device="cuda:0", world_size=2)
    assert not any(row.note for row in rows_of(LEARNER, record, many).values())


def test_a_phase_of_both_sides_is_marked_on_the_one_that_is_meant(record: Record, header: RunHeader) -> None:
    learner, collector = (rows_of(side, record, header).values() for side in (LEARNER, COLLECTOR))
    assert not any(row.color == "yellow" for row in learner)
    assert [row.name for row in collector if row.color == "yellow"] == ["Other"]
