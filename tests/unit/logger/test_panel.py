from __future__ import annotations

import dataclasses
import io
import sys
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from offpolicy.logger.console import PlainLines
from offpolicy.logger.metrics import METRICS, MetricClass
from offpolicy.logger.panel import Panel, open_view, render
from offpolicy.logger.record import Record, RunHeader
from offpolicy.timing.bottleneck import Advice, Bottleneck, Detail, Verdict
from offpolicy.timing.phases import LearnerPhase, PackerPhase

SIZES = [(80, 24), (160, 50), (80, 20), (60, 15), (100, 40), (120, 30), (250, 70), (30, 10), (8, 4)]


VERDICT = Verdict(
    Bottleneck.LEARNER, LearnerPhase.TRAIN, "it is busy", (Advice("give it more threads"), Advice("do less")), 0.92
)


def lines_of(record: Record, header: RunHeader, width: int, height: int, *, ascii_only: bool = False) -> list[str]:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii" if ascii_only else "utf-8")
    console = Console(file=stream, width=width, height=height, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(render(record, VERDICT, header, width, height, ascii_only=ascii_only))
    return capture.get().rstrip("\n").split("\n")


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_panel_never_exceeds_its_terminal(record: Record, header: RunHeader, width: int, height: int) -> None:
    lines = lines_of(record, header, width, height)
    assert len(lines) <= height
    assert {cell_len(line) for line in lines} == {width}


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50)])
def test_every_row_of_the_table_is_shown(record: Record, header: RunHeader, width: int, height: int) -> None:
    shown = "\n".join(lines_of(record, header, width, height))
    timing = [metric.row for metric in METRICS.values() if metric.kind is MetricClass.EXCLUSIVE]
    timing.remove("Episode Hook")
    assert len(timing) == 21
    for row in (*timing, "Iter Wall", "Cycle", "Return", "Eval", "Actor Loss", "Critic Loss"):
        assert row is not None
        assert row in shown


@pytest.mark.parametrize(("width", "height"), [(80, 23), (160, 50)])
def test_the_wait_for_a_hook_has_a_row_where_there_is_one_and_costs_no_other(
    record: Record, header: RunHeader, width: int, height: int
) -> None:
    plain = "\n".join(lines_of(record, header, width, height))
    waiting = lines_of(record | {"timing/collector_post_backpressure_ms": 2.5}, header, width, height)
    assert "Episode Hook" not in plain
    assert any("Episode Hook" in line and "2.50" in line for line in waiting)
    for row in ("Idle (learner)", "Iter Wall", "Cycle", "Return", "Eval", "Actor Loss", "bottleneck", "advice"):
        assert row in "\n".join(waiting)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50)])
def test_rollouts_have_their_age_duration_and_losses_instead_of_a_replay(
    record: Record, header: RunHeader, width: int, height: int
) -> None:
    rollouts = {"perf/policy_lag_p95": 3.0, "perf/rollouts_dropped": 2, "perf/rollouts_too_old": 5}
    shown_record = record | rollouts | {"timing/collector_rollout_ms": 41.5, "train/approx_kl": 0.25}
    shown = "\n".join(lines_of(shown_record, replace(header, algo="appo", runner="appo"), width, height))
    for text in ("lag p95 3", "rollout 41.50 ms", "lost 7", "KL "):
        assert text in shown
    assert "replay " not in shown


LARGE: Record = {
    "perf/steps_per_sec": 12345.0, "perf/predicted_steps_per_sec": 12345.0, "perf/prediction_error_pct": 12.0,
    "perf/collector_capacity": 123456.0, "perf/learner_capacity": 12345.0, "perf/utd": 1.0, "perf/update_debt": 64.0,
    "perf/policy_lag": 1.0, "perf/sample_age": 500_000.0, "replay/fill": 1.0,
}  # fmt: skip
SPEEDS = "│ thru 12345  pred 12345 +-12%  I collector 123456  T learner 12345 steps/s"
STATES = "│ utd 1.00  debt 64 updates  lag 1.0 versions  age 500,000 steps  replay 100%"


@pytest.mark.parametrize(("width", "updates"), [(80, ""), (100, "  upd/s 151.5")])
def test_rates_have_units_and_the_last_one_is_left_out_where_it_has_no_room(
    record: Record, header: RunHeader, width: int, updates: str
) -> None:
    shown = [line.split("   ")[0] for line in lines_of(record | LARGE, header, width, 24)]
    assert f"{SPEEDS}{updates}" in shown
    assert STATES in [line.rstrip("│ ") for line in shown]


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (80, 24, "│ Train                   6.10   92.4% │ Checkpoint Part          0.00    0.0% │"),
        (80, 24, "│ Sync Coordination       0.03    0.5% │ Idle (learner)           6.36   96.4% │"),
        (80, 24, "│ Return     -750.0  Ep Length    150.0 │"),
        (80, 24, "│ bottleneck learner(train 92%)  "),
        (160, 50, "because    it is busy "),
        (160, 50, "Train                    6.10   92.4% ━━━━━━━━━━━━━━━"),
    ],
)
def test_values_stand_in_their_rows(record: Record, header: RunHeader, width: int, height: int, expected: str) -> None:
    assert expected in "\n".join(lines_of(record, header, width, height))


def test_a_terminal_of_24_lines_shows_the_verdict_and_one_advice(record: Record, header: RunHeader) -> None:
    lines = lines_of(record, header, 80, 24 - 1)
    assert "bottleneck" in lines[-3]
    assert "advice     give it more threads" in lines[-2]
    assert "do less" not in lines[-2]


@pytest.mark.parametrize("verdict", [VERDICT, replace(VERDICT, detail=Detail.LAUNCH_BOUND)])
def test_only_the_row_of_the_bottleneck_is_highlighted(record: Record, header: RunHeader, verdict: Verdict) -> None:
    console = Console(width=80, height=24, color_system="standard", force_terminal=True)
    with console.capture() as capture:
        console.print(render(record, verdict, header, 80, 24))
    lit = [line for line in capture.get().split("\n") if "\x1b[1;33m" in line]
    assert [line.find("Train ") > 0 or line.find("learner(train") > 0 for line in lit] == [True, True]


LATE: Record = {
    "rank/num": 2,
    "rank/straggler": 1,
    "rank/late_ms": 40.4,
    "rank/late_share": 0.98,
    "rank/rank_barrier_min_ms": 0.1,
    "rank/rank_barrier_mean_ms": 20.26,
    "rank/rank_barrier_max_ms": 40.5,
}
OF_RANKS = "ranks 2: barrier 0.1/20.3/40.5 ms (min/mean/max), rank 1 late 40.4 ms (98%)"


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_panel_of_two_ranks_never_exceeds_its_terminal(
    record: Record, header: RunHeader, width: int, height: int
) -> None:
    two = dataclasses.replace(header, world_size=2, num_collectors=2, runner="multi_gpu")
    lines = lines_of(record | LATE, two, width, height)
    assert len(lines) <= height
    assert {cell_len(line) for line in lines} == {width}


@pytest.mark.parametrize(("width", "height"), [(80, 23), (120, 24), (160, 50)])
def test_two_ranks_add_a_line_and_no_other_line_is_lost(
    record: Record, header: RunHeader, width: int, height: int
) -> None:
    shown = "\n".join(lines_of(record | LATE, dataclasses.replace(header, world_size=2), width, height))
    assert f"│ {OF_RANKS} " in shown
    for row in ("Train", "Iter Wall", "Cycle", "Target Q", "thru", "replay", "bottleneck", "advice"):
        assert row in shown


@pytest.mark.parametrize(("late", "shown"), [({"rank/late_ms": 0.1}, "none is late"), ({}, "(min/mean/max), -")])
def test_where_none_is_late_beyond_chance_none_is_named(
    record: Record, header: RunHeader, late: Record, shown: str
) -> None:
    waits = {key: value for key, value in LATE.items() if "late" not in key and "straggler" not in key}
    known = {key: value for key, value in record.items() if not key.startswith("rank/")}
    lines = lines_of(known | waits | late, dataclasses.replace(header, world_size=2), 80, 23)
    assert shown in "\n".join(lines)


EACH_RANK: Record = {
    f"rank/{rank}/{name}": value + rank
    for rank in range(2)
    for name, value in (
        ("train_ms", 6.5), ("collector_wait_ms", 0.5), ("rank_barrier_ms", 0.25), ("param_sync_ms", 0.75),
        ("iter_ms", 8.0), ("late_ms", 0.0), ("cpu_pct", 97.0),
    )
}  # fmt: skip
OF_RANK_1 = "rank 1 train 7.50  collector wait 1.50  barrier 1.25  sync 1.75  wall 9.00  late 1.00  cpu 98.0%"


@pytest.mark.parametrize(
    ("width", "height", "is_shown"), [(100, 40, True), (160, 50, True), (99, 40, False), (100, 24, False)]
)
def test_a_broad_panel_has_a_line_for_every_rank_and_the_packer(
    record: Record, header: RunHeader, width: int, height: int, is_shown: bool
) -> None:
    packer: Record = {f"prefetch/{phase}_ms": 1.5 for phase in PackerPhase}
    lines = lines_of(record | LATE | EACH_RANK | packer, dataclasses.replace(header, world_size=2), width, height)
    shown = "\n".join(lines)
    assert OF_RANKS in shown
    assert (OF_RANK_1 in shown, "packer request wait 1.50   rows wait 1.50" in shown) == (is_shown, is_shown)
    assert len(lines) <= height
    assert {cell_len(line) for line in lines} == {width}


def test_without_a_packer_there_is_no_line_for_it(record: Record, header: RunHeader) -> None:
    assert "packer" not in "\n".join(lines_of(record, header, 160, 50))


def test_of_many_ranks_the_first_have_lines(record: Record, header: RunHeader) -> None:
    each: Record = {f"rank/{rank}/iter_ms": 8.0 for rank in range(64)}
    shown = "\n".join(lines_of(record | LATE | each, dataclasses.replace(header, world_size=64), 160, 50))
    assert "rank 7 train" in shown
    assert "rank 8 train" not in shown
    assert "bottleneck" in shown


def test_one_rank_adds_no_line(record: Record, header: RunHeader) -> None:
    assert "barrier 0" not in "\n".join(lines_of(record, header, 160, 50))


def test_a_rank_without_an_iteration_is_missing_from_the_line(record: Record, header: RunHeader) -> None:
    lines = lines_of(record | LATE, dataclasses.replace(header, world_size=3), 80, 23)
    assert "ranks 2 of 3: barrier 0.1/" in "\n".join(lines)


ON_DEVICE: Record = {
    "device/train_ms": 5.25,
    "device/h2d_ms": 0.02,
    "device/h2d_hidden_ms": 0.5,
    "device/busy_share": 0.8125,
    "device/launch_bound": 0.03,
}
OF_DEVICE = "device train 5.25 ms   h2d 0.02+0.50 hidden   busy 81.2%   launch-bound 3.0%"


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_panel_with_a_device_never_exceeds_its_terminal(
    record: Record, header: RunHeader, width: int, height: int
) -> None:
    for shown_header in (header, dataclasses.replace(header, world_size=2)):
        lines = lines_of(record | LATE | ON_DEVICE, shown_header, width, height)
        assert len(lines) <= height
        assert {cell_len(line) for line in lines} == {width}


@pytest.mark.parametrize(("width", "height"), [(80, 23), (160, 50)])
def test_the_device_has_one_line_and_nothing_else_is_lost(
    record: Record, header: RunHeader, width: int, height: int
) -> None:
    shown = "\n".join(lines_of(record | ON_DEVICE, header, width, height))
    for text in (OF_DEVICE, "Train", "Iter Wall", "Cycle", "Target Q", "thru", "replay", "bottleneck", "advice"):
        assert text in shown
    assert "launch-bound" not in "\n".join(lines_of(record, header, width, height))


def test_of_ranks_and_a_device_a_small_terminal_shows_the_ranks_and_keeps_the_advice(
    record: Record, header: RunHeader
) -> None:
    two = dataclasses.replace(header, world_size=2)
    small, large = ("\n".join(lines_of(record | LATE | ON_DEVICE, two, *size)) for size in ((80, 23), (160, 50)))
    assert OF_RANKS in small
    assert "advice" in small
    assert OF_DEVICE not in small
    assert OF_RANKS in large
    assert OF_DEVICE in large


def test_the_title_shows_collectors_and_an_unusual_runner(record: Record, header: RunHeader) -> None:
    usual = dataclasses.replace(header, num_envs=8)
    several = dataclasses.replace(usual, num_collectors=2, runner="multi_gpu")
    assert "| alternate | 8 envs ─" in lines_of(record, usual, 80, 24)[0]
    assert "| alternate | 2 collectors x 8 envs | multi_gpu ─" in lines_of(record, several, 80, 24)[0]


def test_the_ascii_panel_is_ascii(record: Record, header: RunHeader) -> None:
    foreign = dataclasses.replace(header, env_id="Größe-v0")
    for width, height in ((80, 24), (160, 50), (40, 12)):
        assert "\n".join(lines_of(record, foreign, width, height, ascii_only=True)).isascii()


def test_an_empty_record_shows_dashes(header: RunHeader) -> None:
    shown = "\n".join(lines_of({"env_steps": 0}, header, 80, 24))
    assert "Train                      -       - │" in shown
    assert "thru -" in shown


def test_markup_in_a_name_is_text(record: Record, header: RunHeader) -> None:
    odd = dataclasses.replace(header, env_id="[red]X[/red]-v0")
    assert "[red]X[/red]-v0" in lines_of(record, odd, 80, 24)[0]


def test_huge_values_never_push_their_row_out_of_the_frame(record: Record, header: RunHeader) -> None:
    huge = {key: -1.23456789e12 if isinstance(value, float) else value for key, value in record.items()}
    assert {cell_len(line) for line in lines_of(huge, header, 80, 24)} == {80}
    assert "-1.23e12" in "\n".join(lines_of(huge, header, 80, 24))


RECORD: Record = {"env_steps": 2000}


def panel_on(stream: io.StringIO, header: RunHeader) -> Panel:
    return Panel(Console(file=stream, force_terminal=True, width=80, height=24, color_system=None), header)


def test_a_closed_terminal_never_raises(header: RunHeader, record: Record) -> None:
    stream = io.StringIO()
    stream.close()
    panel = Panel(Console(file=stream, force_terminal=True), header)
    panel.record(record)
    panel.message("still here")
    panel.finish(Text("the end"))
    panel.close()


def test_a_file_gets_plain_lines_and_a_forced_panel_gets_a_panel(header: RunHeader) -> None:
    assert isinstance(open_view("auto", io.StringIO(), header), PlainLines)
    assert isinstance(open_view("off", io.StringIO(), header), PlainLines)
    assert isinstance(open_view("on", io.StringIO(), header), Panel)


def test_the_panel_redraws_at_most_four_times_a_second(header: RunHeader, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    panel = panel_on(stream, header)
    for tick in range(20):
        panel.record({**RECORD, "wall_s": tick * 0.05})
    panel.close()
    drawn = stream.getvalue().count("sac | Pendulum-v1")
    assert 4 <= drawn <= 5


def test_a_message_stands_above_the_panel(header: RunHeader) -> None:
    stream = io.StringIO()
    panel = panel_on(stream, header)
    panel.record({**RECORD, "wall_s": 1.0})
    panel.message("warning: look here")
    panel.close()
    shown = stream.getvalue()
    assert shown.rindex("warning: look here") < shown.rindex("sac | Pendulum-v1")


def test_a_status_is_shown_until_there_is_a_record(header: RunHeader) -> None:
    stream = io.StringIO()
    panel = panel_on(stream, header)
    panel.status("collecting random steps 10/1000")
    panel.record({**RECORD, "wall_s": 1.0})
    panel.status("too late")
    panel.close()
    assert "collecting random steps 10/1000" in stream.getvalue()
    assert "too late" not in stream.getvalue()


def test_the_summary_follows_the_last_record(header: RunHeader) -> None:
    stream = io.StringIO()
    panel = panel_on(stream, header)
    panel.record({**RECORD, "wall_s": 1.0})
    panel.record({**RECORD, "wall_s": 1.1, "env_steps": 20_000})
    panel.finish(Text("the summary"))
    panel.close()
    shown = stream.getvalue()
    assert "20,000 / 20,000" in shown
    assert shown.rstrip().endswith("the summary")


def test_the_panel_leaves_no_thread_and_gives_stdout_back(header: RunHeader) -> None:
    before = sys.stdout
    panel = panel_on(io.StringIO(), header)
    panel.record({**RECORD, "wall_s": 1.0})
    panel.close()
    assert sys.stdout is before


def test_a_name_without_room_is_dropped_and_its_value_kept(record: Record, header: RunHeader) -> None:
    huge = {key: -1.23456789e12 if isinstance(value, float) else value for key, value in record.items()}
    shown = "\n".join(lines_of(huge, header, 80, 40))
    assert shown.count("│  -1234567890000.0  … -1234567890000.0 │") == 2


# -- cores ------------------------------------------------------------------------------------------------------------

CORES = {
    "cores/capacity": 2.0, "cores/learner_ms_per_s": 980.0, "cores/openmp_ms_per_s": 310.0,
    "cores/supervisor_ms_per_s": 4.0, "cores/others_ms_per_s": -3.0, "cores/idle_ms_per_s": 600.0,
}  # fmt: skip


def test_a_wide_panel_has_a_line_on_the_cores_and_loses_nothing_else(record: Record, header: RunHeader) -> None:
    without, lines = (lines_of(record | cores, header, 160, 50) for cores in ({}, CORES))
    (added,) = [line for line in lines if line not in without]
    assert added.strip("│ ") == "cores learner 0.98  openmp 0.31  idle 0.60  of 2"
    assert [line for line in lines if line != added] == without


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_panel_with_cores_never_exceeds_its_terminal(
    record: Record, header: RunHeader, width: int, height: int
) -> None:
    lines = lines_of(record | CORES, header, width, height)
    assert len(lines) <= height
    assert {cell_len(line) for line in lines} == {width}
    assert any("cores " in line for line in lines) == (width >= 120 and height >= 30)
