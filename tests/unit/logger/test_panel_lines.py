from __future__ import annotations

from dataclasses import replace

import pytest

from offpolicy.logger.panel_lines import (
    LEGEND,
    Shown,
    advice_line,
    bottleneck_sentence,
    fitting,
    learning_pairs,
    machine_line,
    progress_text,
    rate_lines,
    reason_lines,
    return_line,
    speed_line,
    status_line,
    verdict_lines,
)
from offpolicy.logger.record import Record, RunHeader
from offpolicy.timing.bottleneck import WARMING_UP, Advice, Bottleneck, Detail, Verdict
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
    line = return_line(shown_after(header, *records), 120, ascii_only=False).plain
    assert line == "return       -800.0  ▁▅█  eval -450.0 ±5.00  best -300.0 at 1,000  first -1000.0"
    narrow = return_line(shown_after(header, *records), 56, ascii_only=True).plain
    assert narrow == "return       -800.0  _+#  eval -450.0 +-5.00"


def test_a_resumed_run_shows_its_best_evaluation_of_all_and_not_what_this_start_began_with(header: RunHeader) -> None:
    resumed = replace(header, is_resumed=True, best_eval=(-200.0, 500))
    shown = shown_after(resumed, {"rollout/ep_rew_mean": -800.0, "eval/mean_reward": -300.0, "eval/env_steps": 900.0})
    assert return_line(shown, 120, ascii_only=True).plain.endswith("best -200.0 at 500")


def test_the_speed_stands_with_its_course_and_what_it_could_be(header: RunHeader) -> None:
    record: Record = {
        "perf/iter_ms": 1.0, "perf/steps_per_sec": 75.26, "perf/predicted_steps_per_sec": 78.1,
        "perf/prediction_error_pct": 3.2, "perf/updates_per_sec": 75.0,
    }  # fmt: skip
    line = speed_line(shown_after(header, record, {**record, "perf/steps_per_sec": 80.0}), 100, ascii_only=False).plain
    assert line == "thru           80.0 env steps/s  ▁█  pred 78.1 +-3%  75.0 updates/s"


def test_the_speed_of_the_warm_up_is_not_in_the_curve(header: RunHeader) -> None:
    shown = shown_after(header, {"perf/steps_per_sec": 9000.0}, {"perf/steps_per_sec": 75.0, "perf/iter_ms": 13.0})
    assert list(shown.speeds.points) == [75.0]


def test_the_time_left_is_shown_where_it_is_known(header: RunHeader) -> None:
    known: Record = {"env_steps": 10_000, "time/elapsed_s": 60.0, "time/eta_s": 65.0}
    assert progress_text(known, header) == " 50%  10,000 / 20,000 steps   elapsed 1:00   ETA 1:05"
    assert "ETA" not in progress_text({"env_steps": 0}, header)
    assert progress_text({"env_steps": 19_999}, header).startswith(" 99%")  # 100% is the end
    assert progress_text(known, header, is_narrow=True) == " 50%  10,000 / 20,000 steps   ETA 1:05"


def test_the_end_changes_the_course_and_no_time(header: RunHeader) -> None:
    shown = shown_after(header, {"env_steps": 10, "perf/steps_per_sec": 75.0, "perf/iter_ms": 13.0, "time/eta_s": 9.0})
    shown.end_with({"env_steps": 20, "perf/steps_per_sec": 1.0, "perf/iter_ms": 500.0, "eval/mean_reward": -3.0})
    assert shown.record == {
        "env_steps": 20, "perf/steps_per_sec": 75.0, "perf/iter_ms": 13.0, "eval/mean_reward": -3.0
    }  # fmt: skip
    assert list(shown.speeds.points) == [75.0]
    assert shown.best == (-3.0, 0.0)


def test_what_once_held_a_number_keeps_its_row(header: RunHeader) -> None:
    shown = shown_after(header, {"timing/learner_log_ms": 0.2}, {"timing/learner_log_ms": 0.0, "train/q_mean": 1.0})
    assert shown.seen == {"timing/learner_log_ms", "train/q_mean"}


def test_a_time_that_rounds_to_zero_has_not_been_seen(header: RunHeader) -> None:
    times: Record = {"timing/learner_log_ms": 0.004, "timing/learner_other_ms": 0.006}
    shown = shown_after(header, times | {"train/q_mean": -1e-9})
    assert shown.seen == {"timing/learner_other_ms", "train/q_mean"}


@pytest.mark.parametrize(
    ("verdict", "sentence"),
    [
        (None, "not known yet: no update has been timed"),
        (WARMING_UP, "not known yet: no update has been timed"),
        (Verdict(Bottleneck.UNKNOWN, None, "timing is off"), "not known: timing is off"),
        (VERDICT, "the learner: Train takes 92% of its time"),
        (
            Verdict(Bottleneck.COLLECTOR, CollectorPhase.ENV_STEP, "", share=0.6, detail=Detail.RESETS),
            "the collector: resetting environments takes 60% of its time",
        ),
        (
            Verdict(Bottleneck.LEARNER, LearnerPhase.TRAIN, "", share=0.9, detail=Detail.LAUNCH_BOUND),
            "the learner: Train takes 90% of its time, most of it to launch kernels",
        ),
        (
            Verdict(Bottleneck.LEARNER, LearnerPhase.TRAIN, "", share=0.3, detail=Detail.BLOCKED),
            "the learner: in Train it waits for another thread 30% of its time",
        ),
        (
            Verdict(Bottleneck.CONTENTION, LearnerPhase.TRAIN, "", share=0.4, detail=Detail.DESCHEDULED),
            "no free core: the learner got none for 40% of the time",
        ),
        (
            Verdict(Bottleneck.BALANCED, LearnerPhase.TRAIN, "", share=0.5),
            "no side alone: both are equally busy; Train takes 50% of the learner's time",
        ),
    ],
)
def test_the_bottleneck_is_a_plain_sentence(verdict: Verdict | None, sentence: str) -> None:
    assert bottleneck_sentence(verdict) == sentence


def test_one_advice_is_the_words_to_type() -> None:
    bottleneck, advice = verdict_lines(VERDICT)
    assert advice.plain == "try        algo.utd=1: less work"
    typed = [span for span in advice.spans if span.style == "bold green"]
    assert [advice.plain[span.start : span.end] for span in typed] == ["algo.utd=1"]
    assert bottleneck.plain.startswith("bottleneck the learner")
    assert advice_line(None).plain == "try        -"
    assert [line.plain for line in reason_lines(VERDICT)] == ["because    it is busy", "or         wait"]
    assert reason_lines(None) == []


def test_contention_is_red() -> None:
    contention = replace(VERDICT, bottleneck=Bottleneck.CONTENTION)
    assert [str(verdict_lines(one)[0].spans[-1].style) for one in (VERDICT, contention)] == ["bold yellow", "bold red"]


def test_rates_have_units(record: Record, header: RunHeader) -> None:
    rates, states = rate_lines(record, header, 80)
    assert rates.plain.endswith("env steps/s")
    assert states.plain == "utd 1.00  debt 0 updates  lag 0.5 versions  age 500 steps  replay 10% full"
    (both,) = rate_lines(record, header, 150)
    assert both.plain == f"{rates.plain}  {states.plain}"


@pytest.mark.parametrize(("restarts", "text"), [(1, "learner restarted 1 time  utd"), (2, "learner restarted 2 times")])
def test_restarts_of_learners_are_shown(record: Record, header: RunHeader, restarts: int, text: str) -> None:
    assert rate_lines(record | {"train/restarts": restarts}, header, 80)[1].plain.startswith(text)


def test_restarts_of_collectors_come_first_where_there_were_some(record: Record, header: RunHeader) -> None:
    assert rate_lines(record | {"collect/restarts": 2}, header, 80)[1].plain.startswith("restarts 2  utd 1.00")


def test_rollouts_have_their_age_duration_and_losses_instead_of_a_replay(record: Record, header: RunHeader) -> None:
    lost: Record = {"perf/policy_lag_p95": 3.0, "perf/rollouts_dropped": 2, "perf/rollouts_too_old": 5}
    both = rate_lines(record | lost | {"timing/collector_rollout_ms": 41.5}, replace(header, algo="appo"), 200)
    assert "lag p95 3  rollout 41.50 ms  lost 7 rollouts" in both[0].plain
    assert "replay" not in both[0].plain


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


def test_metrics_are_those_that_the_run_has_unless_all_are_asked_for(record: Record, header: RunHeader) -> None:
    td3 = {key: value for key, value in record.items() if key not in ("train/alpha_loss", "train/ent_coef")}
    shown = shown_after(header, td3)
    names = dict(learning_pairs(shown, is_full=False))
    assert {"Actor Loss", "Critic Loss", "Q", "Updates", "Success"} <= set(names)
    assert not {"Alpha Loss", "Ent Coef", "Entropy"} & set(names)
    assert dict(learning_pairs(shown, is_full=True))["Alpha Loss"] == "-"


def test_the_last_line_goes_through_the_legend_and_gives_way_to_what_happens(header: RunHeader) -> None:
    shown, said = Shown(header, has_help=True), []
    for _ in range(3 * len(LEGEND)):
        said.append(status_line(shown, 150).plain)
        shown.add({}, None)
    assert {line.partition(":")[0] for line in said} == set(LEGEND)
    assert said[0].endswith("? help   Ctrl-C saves and ends")
    shown.message = "warning: look\nhere"
    assert status_line(shown, 80).plain == "warning: look"
    shown.activity = "evaluating"
    assert status_line(shown, 80).plain == "evaluating"


@pytest.mark.parametrize("width", [56, 76])
def test_every_line_of_the_legend_fits(header: RunHeader, width: int) -> None:
    shown = Shown(header)
    for _ in range(3 * len(LEGEND)):
        assert status_line(shown, width).cell_len <= 76
        shown.add({}, None)


def test_parts_without_room_are_left_out_from_the_end() -> None:
    one, two = VERDICT.advice[0].text, VERDICT.advice[1].text
    parts = [advice_line(VERDICT.advice[0]), advice_line(VERDICT.advice[1])]
    assert fitting(parts, 20).plain == f"try        {one}"
    assert two in fitting(parts, 100).plain
