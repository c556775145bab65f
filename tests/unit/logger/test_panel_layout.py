"""What the panel shows in terminals of every size."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from offpolicy.logger.metrics import METRICS, MetricClass
from offpolicy.logger.panel_layout import render
from offpolicy.logger.panel_lines import LEGEND, Shown, bottleneck_sentence
from offpolicy.logger.record import Record, RunHeader
from offpolicy.model.bottleneck import WARMING_UP, Advice, Bottleneck, Detail, Verdict
from offpolicy.timing.phases import CollectorPhase, LearnerPhase

SIZES = [(80, 24), (160, 50), (100, 30), (80, 20), (100, 40), (140, 40), (120, 20), (250, 70)]
SEVEN = ("Collector Wait", "Replay Batch Wait", "H2D Copy", "Rank Barrier", "Sync Coordination", "Train", "Param Sync")
VERDICT = Verdict(
    Bottleneck.LEARNER, LearnerPhase.TRAIN, "it is busy", (Advice("threads.learner=2: faster"), Advice("do less")), 0.92
)
LATE: Record = {
    "rank/num": 2, "rank/straggler": 1, "rank/late_ms": 40.4, "rank/late_share": 0.98,
    "rank/rank_barrier_min_ms": 0.1, "rank/rank_barrier_mean_ms": 20.26, "rank/rank_barrier_max_ms": 40.5,
}  # fmt: skip
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
    "device/launch_bound": 0.03, "system/gpu_pct": 45.0, "system/vram_gib": 2.1, "system/vram_total_gib": 24.0,
    "system/gpu_watts": 240.2,
}  # fmt: skip
CORES: Record = {
    "cores/capacity": 2.0, "cores/learner_ms_per_s": 980.0, "cores/openmp_ms_per_s": 310.0,
    "cores/others_ms_per_s": 300.0, "cores/idle_ms_per_s": 400.0, "system/memory_gib": 3.14,
    "system/memory_total_gib": 7.8,
}  # fmt: skip
LINK: Record = {
    "link/0/remote_busy_ms": 12.34, "link/0/serialise_ms": 0.04, "link/0/transfer_ms": 3.21, "link/0/copy_ms": 0.06,
    "link/0/overhead_ms": 1.0, "link/0/bytes_per_sec": 2_100_000.0, "link/0/lag_rows": 96.0,
}  # fmt: skip
LINES = (
    "   elapsed 1:00   ETA 1:05",
    "return       -800.0  ▁▅█  eval -450.0 ±5.00  best -300.0 at 1,000  first -1000.0 ",
    "thru           80.0 env steps/s  ▁▅█  pred 78.1 +-3%  75.0 updates/s ",
    "bottleneck the learner: Train takes 92% of its time ", "try        threads.learner=2: faster ",
    "T learner 155.0 env steps/s ", "utd 1.00  debt 0 updates  lag 0.5 versions  age 500 steps  replay 10% full ",
    "ranks 2: barrier 0.1/20.3/40.5 ms (min/mean/max), rank 1 late 40.4 ms (98%) ",
    "device train 5.25 ms   h2d 0.02+0.50 hidden   busy 81.2%   launch-bound 3.0% ",
    "cpu 1.3 of 2 cores, others 0.3  memory 3.1 of 7.8 GiB  vram 2.1 of 24.0 GiB  gpu 45%  power 240 W ",
    "because    it is busy ", "or         do less ",
    "rank 1 train 7.50  collector wait 1.50  barrier 1.25  sync 1.75  wall 9.00  late 1.00  cpu 98.0% ",
    "cores learner 0.98  ",
    "remote 0 remote busy 12.3  serialise 0.0  transfer 3.2  copy 0.1  overhead 1.0 ms  2.1 MB/s  lag 96 steps",
)  # fmt: skip


def shown_of(record: Record, header: RunHeader, verdict: Verdict = VERDICT, *, is_full: bool = False) -> Shown:
    shown = Shown(header, is_full)
    for number in range(8):
        shown.add({**record, "rollout/ep_rew_mean": -1000.0 + 50 * number}, verdict)
    return shown


def drawn(shown: Shown, width: int, height: int, color: str | None = None) -> list[str]:
    console = Console(width=width, height=height, color_system=color, force_terminal=bool(color))  # type: ignore[arg-type]  # a name
    with console.capture() as capture:
        console.print(render(shown, width, height))
    return capture.get().rstrip("\n").split("\n")


def learner_rows(lines: list[str]) -> dict[str, str]:
    """Times in the learner's account, in 80 columns, by the names of the rows."""
    cells = [line[2:33] for line in lines[7:]]
    return {cell[:17].strip(): cell[17:26].strip() for cell in cells if cell[30:] == "%"}


@pytest.mark.promise("panel")
def test_the_panel_never_exceeds_its_terminal(record: Record, header: RunHeader) -> None:
    two = replace(header, world_size=2)
    huge = {key: -1.23456789e12 for key, value in record.items() if isinstance(value, float)}
    for known in ({}, LATE | ON_DEVICE, LATE | ON_DEVICE | CORES | EACH_RANK, huge):
        for is_full in (True, False):
            shown = shown_of(record | known, two, is_full=is_full)
            for width, height in SIZES:
                lines = drawn(shown, width, height)
                assert len(lines) <= height
                assert {cell_len(line) for line in lines} == {width}


@pytest.mark.promise("panel")
def test_what_people_look_at_and_the_rows_of_the_contract_stand_in_every_size(
    record: Record, header: RunHeader
) -> None:
    shown = shown_of(record, header)
    for width, height in SIZES:
        lines = [line.strip("│ ") for line in drawn(shown, width, height)]
        assert [line.split()[0] for line in lines[2:6]] == ["return", "thru", "bottleneck", "try"]
        assert "steps" in lines[1]
        for row in SEVEN:
            assert sum(line.startswith(row) for line in lines) == 1


def test_every_line_says_what_the_record_holds(record: Record, header: RunHeader) -> None:
    shown = Shown(replace(header, world_size=2))
    speed: Record = {"perf/predicted_steps_per_sec": 78.1, "perf/prediction_error_pct": 3.2, "time/elapsed_s": 60.0}
    known = (
        record
        | LATE
        | EACH_RANK
        | ON_DEVICE
        | CORES
        | LINK
        | speed
        | {"time/eta_s": 65.0, "perf/updates_per_sec": 75.0}
    )
    for step, mean in enumerate((-900.0, -300.0, -450.0)):
        known |= {"rollout/ep_rew_mean": -1000.0 + 100 * step, "perf/steps_per_sec": 70.0 + 5 * step}
        known |= {"eval/mean_reward": mean, "eval/std_reward": 5.0, "eval/env_steps": 1000.0 * step}
        shown.add(known, VERDICT)
    frame = "\n".join(drawn(shown, 140, 45))
    assert [line for line in LINES if line not in frame] == []
    narrow = "\n".join(drawn(shown, 80, 24))
    assert "eval -450.0 ±5.00  best -300.0 at 1,000 " in narrow  # whole parts are left out
    resumed = replace(header, is_resumed=True, best_eval=(-100.0, 500))  # the best of all, not the first of this start
    assert "best -100.0 at 500 " in "\n".join(drawn(shown_of(record, resumed), 120, 30))


def test_the_full_panel_has_every_row_of_the_table(record: Record, header: RunHeader) -> None:
    full, usual = ("\n".join(drawn(shown_of(record, header, is_full=is_full), 100, 35)) for is_full in (True, False))
    timing = [metric.row for metric in METRICS.values() if metric.kind is MetricClass.EXCLUSIVE]
    assert len(timing) == 23
    for row in (*timing, "Iter Wall", "Cycle", "Actor Loss", "Critic Loss"):
        assert row in full
    assert "Evaluation" not in usual


def test_below_80_by_20_there_is_the_plain_line(record: Record, header: RunHeader) -> None:
    for width, height in ((40, 12), (79, 24), (80, 19)):
        lines = drawn(shown_of(record, header), width, height)
        assert "".join(lines).startswith("10% step=2000/20000 ret=-650.0 thru=")
        assert max(map(cell_len, lines)) <= width


def test_only_the_row_of_the_bottleneck_is_highlighted(record: Record, header: RunHeader) -> None:
    other = Verdict(Bottleneck.COLLECTOR, CollectorPhase.OTHER, "")  # the learner has such a phase, too
    bound = replace(VERDICT, detail=Detail.LAUNCH_BOUND)
    for verdict, row in ((VERDICT, "Train "), (bound, "Train "), (other, "Other ")):
        lines = drawn(shown_of(record | {"timing/learner_other_ms": 1.0}, header, verdict), 80, 24, "standard")
        sentence, *lit = [line for line in lines if "\x1b[1;33m" in line]
        assert "takes" in sentence
        assert [line.split("\x1b[1;33m")[1].startswith(row) for line in lit] == [True]


def test_the_rows_sum_to_the_wall_whatever_the_room(record: Record, header: RunHeader) -> None:
    for height in (20, 22, 30):
        *rows, wall = learner_rows(drawn(shown_of(record, header), 80, height)).items()
        assert wall == ("Iter Wall", "6.60")
        assert sum(float(ms) for _, ms in rows if ms != "one rank") == pytest.approx(6.6)


def test_where_a_phase_cannot_occur_it_says_why(record: Record, header: RunHeader) -> None:
    on_cpu = learner_rows(drawn(shown_of(record, replace(header, device="cpu")), 80, 24))
    assert [on_cpu[name] for name in SEVEN if not on_cpu[name][0].isdigit()] == ["CPU", "one rank", "one rank"]
    many = learner_rows(drawn(shown_of(record, replace(header, device="cuda:0", world_size=2)), 80, 24))
    assert all(ms[0].isdigit() for ms in many.values())


def test_the_title_shows_collectors_and_an_unusual_runner_and_no_markup(record: Record, header: RunHeader) -> None:
    several = replace(header, num_envs=8, num_collectors=2, runner="multi_gpu")
    assert "| alternate | 2 collectors x 8 envs | multi_gpu ─" in drawn(shown_of(record, several), 80, 24)[0]
    assert "[red]X[/red]-v0" in drawn(shown_of(record, replace(header, env_id="[red]X[/red]-v0")), 80, 24)[0]


def test_an_empty_record_shows_dashes_and_an_unknown_return_no_curve(header: RunHeader) -> None:
    shown = shown_of({"env_steps": 0}, header)
    shown.add({"env_steps": 0, "rollout/ep_rew_mean": math.nan})
    frame = "\n".join(drawn(shown, 80, 24))
    assert "│ Train                    -    -" in frame
    assert "thru              - env steps/s" in frame
    assert "▁▂▃▄▅▆▇█" in frame


def test_help_explains_every_short_name_in_80_by_24_and_the_last_line_one_after_another(
    record: Record, header: RunHeader
) -> None:
    shown = shown_of(record, header)
    last = set()
    for _ in range(3 * len(LEGEND)):
        shown.add(record, VERDICT)
        last.add(drawn(shown, 80, 24)[-2])
    shown.is_helping = True
    lines = drawn(shown, 80, 24)
    assert len(lines) <= 24
    assert "…" not in "".join(lines)
    for name, meaning in LEGEND.items():
        assert any(line.startswith(f"│ {name} ") and meaning in line for line in lines)
        assert any(line.startswith(f"│ {name}: {meaning} ") for line in last)


def test_the_bottleneck_is_a_plain_sentence() -> None:
    warming, unknown = "not known yet: no update has been timed", Verdict(Bottleneck.UNKNOWN, None, "timing is off")
    assert [bottleneck_sentence(verdict) for verdict in (None, WARMING_UP)] == [warming, warming]
    assert bottleneck_sentence(unknown) == "not known: timing is off"
    sentences = {
        (Bottleneck.COLLECTOR, CollectorPhase.ENV_STEP, Detail.RESETS):
            "the collector: resetting environments takes 50% of its time",
        (Bottleneck.LEARNER, LearnerPhase.TRAIN, Detail.LAUNCH_BOUND):
            "the learner: Train takes 50% of its time, most of it to launch kernels",
        (Bottleneck.CONTENTION, LearnerPhase.TRAIN, Detail.DESCHEDULED):
            "no free core: the learner got none for 50% of the time",
        (Bottleneck.BALANCED, LearnerPhase.TRAIN, None):
            "no side alone: both are equally busy; Train takes 50% of the learner's time",
    }  # fmt: skip
    for (kind, phase, detail), sentence in sentences.items():
        assert bottleneck_sentence(Verdict(kind, phase, "", share=0.5, detail=detail)) == sentence
