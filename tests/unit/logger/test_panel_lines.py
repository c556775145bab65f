"""The lines of the panel: the course of the run, rates, machine, and the sentences on the bottleneck."""

from __future__ import annotations

import math
from dataclasses import replace

from offpolicy.logger.panel_lines import (
    LEGEND,
    Shown,
    bottleneck_sentence,
    machine_line,
    progress_line,
    rate_lines,
    return_line,
    sparkline,
    speed_line,
    status_line,
    verdict_lines,
)
from offpolicy.logger.record import Record, RunHeader
from offpolicy.model.bottleneck import WARMING_UP, Advice, Bottleneck, Detail, Verdict
from offpolicy.timing.phases import CollectorPhase, LearnerPhase

VERDICT = Verdict(
    Bottleneck.LEARNER, LearnerPhase.TRAIN, "it is busy", (Advice("algo.utd=1: less work"), Advice("wait")), 0.92
)


def shown_after(header: RunHeader, *records: Record) -> Shown:
    shown = Shown(header)
    for record in records:
        shown.add(record, VERDICT)
    return shown


def test_the_return_stands_with_its_course_the_evaluation_and_the_best_one(header: RunHeader) -> None:
    records: list[Record] = [
        {"rollout/ep_rew_mean": -1000.0 + 100 * k, "eval/mean_reward": mean, "eval/std_reward": 5.0,
         "eval/env_steps": 1000.0 * k}
        for k, mean in enumerate((-900.0, -300.0, -450.0))
    ]  # fmt: skip
    line = return_line(shown_after(header, *records), 120).plain
    assert line == "return       -800.0  ▁▅█  eval -450.0 ±5.00  best -300.0 at 1,000  first -1000.0"
    narrow = return_line(shown_after(header, *records), 56).plain
    assert narrow == "return       -800.0  ▁▅█  eval -450.0 ±5.00"
    resumed = replace(header, is_resumed=True, best_eval=(-200.0, 500))  # the best of all, not the first of this start
    assert return_line(shown_after(resumed, *records), 120).plain.endswith("best -200.0 at 500")


def test_the_speed_stands_with_its_course_and_what_it_could_be(header: RunHeader) -> None:
    record: Record = {
        "perf/iter_ms": 1.0, "perf/steps_per_sec": 75.26, "perf/predicted_steps_per_sec": 78.1,
        "perf/prediction_error_pct": 3.2, "perf/updates_per_sec": 75.0,
    }  # fmt: skip
    line = speed_line(shown_after(header, record, {**record, "perf/steps_per_sec": 80.0}), 100).plain
    assert line == "thru           80.0 env steps/s  ▁█  pred 78.1 +-3%  75.0 updates/s"


def test_the_progress_says_the_time_left_where_it_is_known(header: RunHeader) -> None:
    known: Record = {"env_steps": 10_000, "time/elapsed_s": 60.0, "time/eta_s": 65.0}
    shown, end = shown_after(header, known), shown_after(header, {"env_steps": 19_999, "time/elapsed_s": 9.0})
    bar = 16 * "━" + 16 * "─"
    assert progress_line(shown, 86).plain == f"{bar}  50%  10,000 / 20,000 steps   elapsed 1:00   ETA 1:05"
    assert progress_line(shown, 56).plain.endswith("─  50%  10,000 / 20,000 steps   ETA 1:05")
    assert progress_line(end, 86).plain.endswith("━─  99%  19,999 / 20,000 steps   elapsed 0:09")  # 100% is the end


def test_the_bottleneck_is_a_plain_sentence() -> None:
    warming, unknown = "not known yet: no update has been timed", Verdict(Bottleneck.UNKNOWN, None, "timing is off")
    assert [bottleneck_sentence(verdict) for verdict in (None, WARMING_UP)] == [warming, warming]
    assert bottleneck_sentence(unknown) == "not known: timing is off"
    learner, collector, steps = Bottleneck.LEARNER, Bottleneck.COLLECTOR, CollectorPhase.ENV_STEP
    sentences = {
        (learner, LearnerPhase.TRAIN, None): "the learner: Train takes 50% of its time",
        (collector, steps, Detail.RESETS): "the collector: resetting environments takes 50% of its time",
        (learner, LearnerPhase.TRAIN, Detail.LAUNCH_BOUND):
            "the learner: Train takes 50% of its time, most of it to launch kernels",
        (Bottleneck.CONTENTION, LearnerPhase.TRAIN, Detail.DESCHEDULED):
            "no free core: the learner got none for 50% of the time",
        (Bottleneck.BALANCED, LearnerPhase.TRAIN, None):
            "no side alone: both are equally busy; Train takes 50% of the learner's time",
    }  # fmt: skip
    for (bottleneck, phase, detail), sentence in sentences.items():
        assert bottleneck_sentence(Verdict(bottleneck, phase, "", share=0.5, detail=detail)) == sentence


def test_one_advice_is_the_words_to_type() -> None:
    lines = verdict_lines(VERDICT)
    assert [line.plain for line in lines] == [
        "bottleneck the learner: Train takes 92% of its time", "try        algo.utd=1: less work",
        "because    it is busy", "or         wait",
    ]  # fmt: skip
    typed = [span for span in lines[1].spans if span.style == "bold green"]
    assert [lines[1].plain[span.start : span.end] for span in typed] == ["algo.utd=1"]
    assert [line.plain for line in verdict_lines(None)[1:]] == ["try        -"]


def test_rates_have_units(record: Record, header: RunHeader) -> None:
    rates, states = rate_lines(record, header, 80)
    assert rates.plain.endswith("env steps/s")
    assert states.plain == "utd 1.00  debt 0 updates  lag 0.5 versions  age 500 steps  replay 10% full"


MACHINE: Record = {
    "cores/capacity": 2.0, "cores/idle_ms_per_s": 400.0, "cores/others_ms_per_s": 300.0,
    "system/memory_gib": 3.14, "system/memory_total_gib": 7.8,
}  # fmt: skip
GPU: Record = {"system/gpu_pct": 45.0, "system/vram_gib": 2.1, "system/vram_total_gib": 24.0, "system/gpu_watts": 240.2}


def test_the_machine_has_a_line_and_a_gpu_its_numbers_where_there_is_one() -> None:
    (line,) = machine_line(MACHINE, 100)
    assert line.plain == "cpu 1.3 of 2 cores, others 0.3  memory 3.1 of 7.8 GiB"
    (with_gpu,) = machine_line(MACHINE | GPU, 120)
    assert with_gpu.plain == f"{line.plain}  vram 2.1 of 24.0 GiB  gpu 45%  power 240 W"
    assert machine_line({}, 100) == []


def test_the_last_line_goes_through_the_legend_and_gives_way_to_what_happens(header: RunHeader) -> None:
    shown, said = Shown(header, has_help=True), []
    for _ in range(3 * len(LEGEND)):
        said.append(status_line(shown, 150).plain)
        shown.add({}, None)
    assert {line.partition(":")[0] for line in said} == set(LEGEND)
    assert said[0].endswith("? help   Ctrl-C saves and ends")
    shown.messages, shown.message_until = ["warning: look\nhere"], 1000
    assert status_line(shown, 80).plain == "warning: look"
    shown.activity = "evaluating"
    assert status_line(shown, 80).plain == "evaluating"


def test_a_curve_goes_from_the_lowest_to_the_highest_level(header: RunHeader) -> None:
    assert sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0], 8) == ""
    assert sparkline(range(1000), 8) == "▁▂▃▄▅▆▇█"
    returns: list[Record] = [{"rollout/ep_rew_mean": value} for value in (math.nan, 2.0, math.inf, 3.0)]
    assert list(shown_after(header, *returns).returns) == [2.0, 3.0]
