"""Races: equal settings or no number, rates of settled learning, ratios of quiet rounds."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from benchmarks.peers import control, peer_models, race
from benchmarks.peers.__main__ import Plan, main, tasks
from benchmarks.peers.contenders import CONTENDERS, Job, Ours, Progress, Work, overrides, settings_of_run, work_of
from benchmarks.peers.observed import Observed
from benchmarks.peers.race import SETTLE_S, rate_of, steady_ticks, update_ms
from benchmarks.peers.settings import Settings, UnequalSettings, check_equal
from benchmarks.peers.tables import Done, ratios, repeats_of, rows
from benchmarks.peers.workloads import WORKLOADS
from offpolicy.commands.trial import TUNED
from offpolicy.config.overrides import load_config

SAC = Settings.of("sac")
SMALL = replace(Settings.of("td3", num_envs=2), hidden_dims=(8, 8), batch_size=4, learning_starts=20, capacity=1000)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_our_overrides_are_the_settings(workload: str) -> None:
    wanted = WORKLOADS[workload].settings
    cfg = load_config(list(overrides(wanted))).to_mapping()
    found = settings_of_run(json.loads(json.dumps(cfg)))
    check_equal(wanted, found, env_steps=1000 + 1000 * wanted.num_envs, updates=1000)
    assert cfg["algo"]["utd"] == pytest.approx(1 / wanted.num_envs)


def test_every_difference_is_named() -> None:
    found = SAC.to_mapping() | {"batch_size": 64, "hidden_dims": [400, 300]}
    expected = r"batch_size: got 64, allowed 256; hidden_dims: got \[400, 300\], allowed \[256, 256\]$"
    with pytest.raises(UnequalSettings, match=expected):
        check_equal(SAC, found, env_steps=2000, updates=1000)


def test_a_setting_that_is_not_reported_is_not_equal() -> None:
    found = SAC.to_mapping()
    del found["tau"]
    with pytest.raises(UnequalSettings, match=r"tau: got None, allowed 0\.005"):
        check_equal(SAC, found, env_steps=2000, updates=1000)


@pytest.mark.parametrize("updates", [500, 1100])
def test_too_few_and_too_many_updates_are_refused(updates: int) -> None:
    with pytest.raises(UnequalSettings, match=f"updates: got {updates}, allowed 1000"):
        check_equal(SAC, SAC.to_mapping(), env_steps=2000, updates=updates)


def test_one_update_per_vector_step_is_counted() -> None:
    many = Settings.of("sac", 16)
    check_equal(many, many.to_mapping(), env_steps=1000 + 16_000, updates=1000)


@pytest.mark.parametrize(("updates", "is_equal"), [(13, True), (16, True), (11, False), (17, False)])
def test_a_short_run_of_many_environments_may_lack_an_update(updates: int, *, is_equal: bool) -> None:
    """15 vector steps are 14.02 updates by the count of random steps, and 13 where a whole vector step is random."""
    many = Settings.of("sac", 1024)
    with (
        contextlib.nullcontext() if is_equal else pytest.raises(UnequalSettings, match=r"allowed 14 \+- 2 after 15360")
    ):
        check_equal(many, many.to_mapping(), env_steps=15 * 1024, updates=updates)


def test_the_rate_begins_when_learning_has_settled() -> None:
    ticks = [(500, 0.0), (1000, 1.0), (1001, 1.0 + SETTLE_S), (1101, 2.0 + SETTLE_S), (1301, 4.0 + SETTLE_S)]
    assert rate_of(steady_ticks(ticks, learning_starts=1000)) == pytest.approx(100.0)


def test_the_rate_begins_when_the_first_trial_has_ended() -> None:
    seen = Observed([0])
    ticks = [(1000 + 10 * second, float(second)) for second in range(20)]
    seen.note(Progress(ticks[:12], num_choices=0, is_trying=True), now_s=111.5)
    seen.note(Progress(ticks[:13], num_choices=1), now_s=112.5)
    steady = steady_ticks(seen.on_our_clock(ticks), 1000, seen.settled_s)
    assert steady[0] == (1120, 112.5)
    assert not seen.has_changed(steady[0][1], steady[-1][1])


def test_a_setting_that_changes_within_the_window_is_seen() -> None:
    seen = Observed([0])
    for num_choices, now_s in ((1, 5.0), (2, 15.0)):
        seen.note(Progress([], num_choices), now_s)
    assert seen.has_changed(10.0, 20.0)
    assert not seen.has_changed(5.0, 10.0)


def test_a_run_that_is_too_short_has_no_rate() -> None:
    with pytest.raises(ValueError, match="raise --seconds"):
        rate_of(steady_ticks([(1000, 1.0), (2000, 2.0)], learning_starts=1000))


def repeat(contender: str, number: int, rate: float | None, *, marked: bool = False) -> Done:
    return Done(contender, number, rate, None if rate else "exit code 1", "2", 0.4 if marked else 0.0, marked)


def test_ratios_are_of_one_round_and_the_faster_setting() -> None:
    repeats = [repeat("ours", 1, 100.0), repeat("sb3-1", 1, 50.0), repeat("sb3-2", 1, 80.0), repeat("ours", 2, 90.0)]
    assert ratios(repeats, ["ours", "sb3-1", "sb3-2"]) == {"offpolicy / faster SB3": {1: 1.25}}


def test_a_denominator_that_is_missing_marked_or_of_another_hour_leaves_no_ratio() -> None:
    ours, slow, fast = repeat("ours", 1, 100.0), repeat("sb3-1", 1, 50.0), repeat("sb3-2", 1, 80.0)
    asked = ["ours", "sb3-1", "sb3-2"]
    others = (repeat("sb3-2", 1, None), repeat("sb3-2", 1, 80.0, marked=True), fast._replace(started_s=1000.0))
    assert [ratios([ours, slow, *one], asked) for one in ([], *([other] for other in others))] == [{}] * 4
    assert ratios([ours, slow], ["ours", "sb3-1"]) == {"offpolicy / Stable-Baselines3, 1 thread": {1: 2.0}}


def test_marked_rounds_are_shown_and_left_out() -> None:
    repeats = [repeat("ours", 1, 100.0), repeat("ours", 2, 10.0, marked=True), repeat("ours", 3, 104.0)]
    repeats += [repeat("sbx", number, 100.0) for number in (1, 2, 3)]
    (row, _) = rows(repeats, [])
    assert (row.median, row.low, row.rounds, row.left_out) == ("102.0", "100.0", "2/3", "10.0")
    assert ratios(repeats, ["ours", "sbx"])["offpolicy / SBX"] == {1: 1.0, 3: 1.04}


def test_who_failed_or_is_missing_has_a_row() -> None:
    found = rows([repeat("sbx", 1, None), repeat("ours", 1, 5.0, marked=True)], ["sb3-1"])
    assert [(row.name, row.median) for row in found] == [
        ("SBX", "failed"),
        ("offpolicy", "no quiet round"),
        ("Stable-Baselines3, 1 thread", "not measured"),
    ]


def test_repeats_are_read_from_the_tasks_of_their_race() -> None:
    data = {"contender": "ours", "round": 1, "steps_per_sec": 2.0, "failure": None, "threads": "2"}
    found: dict[str, Any] = {"sac-1/ours/1": {"others_share": 0.5, "data": data}}
    found |= {"sac-1/tune": {"others_share": 0.0, "data": []}, "sac-16/ours/1": {"others_share": 0.0, "data": data}}
    assert repeats_of(found, "sac-1") == [Done("ours", 1, 2.0, None, "2", 0.5, is_marked=True, iteration_ms=500.0)]


def test_an_iteration_is_a_vector_step_and_its_update() -> None:
    data = {"steps_per_sec": 2000.0, "failure": None, "threads": "2"}
    found = {
        f"sac-16/{key}/1": {"others_share": 0.0, "data": data | {"contender": key, "round": 1} | known}
        for key, known in (("ours", {"update_ms": 6.25}), ("sbx", {}))
    }
    by_name = {row.name: (row.iteration_ms, row.update_ms) for row in rows(repeats_of(found, "sac-16"), [])}
    assert by_name == {"offpolicy": ("8.00", "6.25"), "SBX": ("8.00", "")}  # older results have no update


def test_the_updates_of_ours_are_counted_with_their_samples() -> None:
    phases = {"replay_sample": 0.5, "h2d": 0.25, "train": 4.0}

    def record(wall_s: float, updates: int, factor: float) -> dict[str, float]:
        timing = {f"timing/learner_{phase}_ms": factor * ms for phase, ms in phases.items()}
        return timing | {"wall_s": wall_s, "train/n_updates": updates}

    work = work_of([{"wall_s": 0.5}, record(1.0, 10, 9.0), record(2.0, 30, 1.0), record(3.0, 70, 2.0)])
    assert [(one.clock_s, one.updates) for one in work] == [(1.0, 10), (2.0, 30), (3.0, 70)]
    assert update_ms(work, 2.0, 3.0) == pytest.approx(2 * 4.75)
    assert update_ms(work, 0.0, 3.0) == pytest.approx((20 * 4.75 + 40 * 9.5) / 60)


def test_a_window_without_an_update_has_no_time_of_one() -> None:
    work = [Work(1.0, 5, 0.5), Work(2.0, 5, 0.5)]
    assert [update_ms(some, 0.0, 9.0) for some in ([], work[:1], work)] == [None] * 3
    assert update_ms([*work, Work(3.0, 7, 0.6)], 2.5, 9.0) is None  # one reading


def test_a_repeat_that_failed_has_no_part_in_the_medians() -> None:
    good = repeat("ours", 1, 100.0)._replace(iteration_ms=10.0, update_ms=8.0)
    bad = repeat("ours", 2, None)._replace(update_ms=80.0)
    (row,) = rows([good, bad], [])
    assert (row.iteration_ms, row.update_ms) == ("10.00", "8.00")


def test_a_run_of_ours_is_read_once(tmp_path: Path) -> None:
    """Its records were all parsed anew five times a second, beside its trial of threads."""
    ours, job, run = Ours("offpolicy"), Job(SAC, 1.0, 1, tmp_path), tmp_path / "run"
    run.mkdir()
    assert ours.progress(job) == Progress([])
    (run / "metrics.jsonl").touch()
    assert ours.progress(job) == Progress([])  # the run may still write its configuration
    threads = {"threads": {"learner": "auto"}, "collect": {"mode": "auto"}, "runner": {"world_size": 1}}
    (run / "config.yaml").write_text(json.dumps(threads))
    with (run / "metrics.jsonl").open("a") as records:
        print('{"env_steps": 10, "wall_s": 1.0}\n{"env_steps": 2', end="", file=records, flush=True)
        assert ours.progress(job) == Progress([(10, 1.0)], is_trying=True)
        (run / "config.yaml").unlink()
        print('0, "wall_s": 2.0}', file=records, flush=True)
        for _ in range(2):
            assert ours.progress(job) == Progress([(10, 1.0), (20, 2.0)], is_trying=True)
    (tmp_path / "output").write_text(f"{TUNED} 1 thread\n")
    assert ours.progress(job) == Progress([(10, 1.0), (20, 2.0)], num_choices=1)


def test_a_peer_notes_how_long_its_updates_take() -> None:
    done: list[tuple[int, int]] = []

    class Model:
        def train(self, gradient_steps: int, batch_size: int) -> None:
            done.append((gradient_steps, batch_size))

    model, clock = Model(), itertools.accumulate(itertools.cycle([2.0, 0.5]))
    in_updates = peer_models.timed_updates(model, lambda: next(clock))
    for _ in range(2):
        model.train(1, batch_size=4)
    assert done == [(1, 4)] * 2
    assert in_updates == [2, 1.0]


def test_rounds_are_interleaved_and_tuning_comes_first() -> None:
    plan = Plan(["sac-1"], ["ours", "tuned", "sbx"], rounds=2, seconds=3.0, tune_minutes=1.0)
    keys = [task.key for task in tasks(plan, {"sbx": "no network"}, {}, (0,))]
    rounds = [f"sac-1/{key}/{number}" for number in (1, 2) for key in ("ours", "tuned")]
    assert keys == ["sac-1/tune", *rounds]


def test_all_races_that_are_promised_are_there() -> None:
    assert list(WORKLOADS) == ["sac-1", "td3-1", "sac-16", "sac-64"]
    for one in WORKLOADS.values():
        assert {"ours", "overlap", "tuned", "sb3-1", "sb3-2", "sbx", "control-2"} <= set(one.contenders)


@pytest.mark.parametrize("words", [["--race", "ppo"], ["--only", "rllib"], ["--seconds", "1"]])
def test_impossible_options_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert "allowed" in capsys.readouterr().err


@pytest.mark.usefixtures("results_directory")
@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_the_single_file_does_the_work_that_it_reports(algo: str, tmp_path: Path) -> None:
    settings = replace(SMALL, algo=algo, policy_delay=2 if algo == "td3" else 1)
    seconds = 2.0  # enough for both environments' first steps beside another program
    report_of = control.train(control.trainer_of, control.separate_envs, settings.to_mapping(), seconds, 1, 1)
    (tmp_path / "report.json").write_text(json.dumps(report_of))
    report = CONTENDERS["control-1"].report(Job(settings, seconds, 1, tmp_path))
    check_equal(settings, report.settings, report.env_steps, report.updates)
    assert report.threads == "1"
    assert 0.0 < report.work[-1].in_updates_s < seconds
    assert report.work[-1].updates <= report.updates
    assert report.ticks[-1][0] >= settings.learning_starts


@pytest.mark.mp
@pytest.mark.slow
@pytest.mark.parametrize("is_in_background", [False, True])
def test_a_repeat_of_ours_is_stopped_and_has_a_rate(monkeypatch: pytest.MonkeyPatch, *, is_in_background: bool) -> None:
    monkeypatch.setattr(race, "SETTLE_S", 1.0)
    if is_in_background:  # where a shell has SIGINT ignored
        monkeypatch.setattr(race.subprocess, "Popen", partial(Popen, preexec_fn=ignore_interrupts))
    found = race.run("ours", Ours("offpolicy", ("collect.mode=alternate",)), SMALL, 4.0, 1, (0,))
    assert found.failure is None
    assert found.steps_per_sec is not None
    assert found.others_share is not None
    assert found.window_s >= 2.0
    assert "alternate" in found.threads
    assert found.update_ms is not None
    assert 0.0 < found.update_ms < 1000 * SMALL.num_envs / found.steps_per_sec


@pytest.mark.mp
@pytest.mark.slow
def test_a_repeat_with_other_settings_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "SETTLE_S", 1.0)
    found = race.run("ours", Ours("offpolicy", ("algo.batch_size=8",)), SMALL, 4.0, 1, (0,))
    assert found.steps_per_sec is None
    assert found.failure == "unequal settings: batch_size: got 8, allowed 4"


def ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Broken(Ours):
    def command(self, job: Job) -> list[str]:
        return ["python3", "-c", "raise SystemExit('no such environment')"]


def test_a_contender_that_fails_says_why() -> None:
    found = race.run("ours", Broken("broken"), SMALL, 1.0, 1, (0,))
    assert found.failure == "exit code 1\nno such environment"
