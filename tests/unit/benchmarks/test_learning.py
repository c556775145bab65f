"""Learning curves: what is run in which order, what is kept of it, and what the page says."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console

from benchmarks.journal import MORE_LEFT, Budget
from benchmarks.learning import __main__ as learning
from benchmarks.learning import page, runs
from benchmarks.learning.nothing_learnt import policies
from benchmarks.learning.page import Judged, details, judged, missing, results_table, row
from benchmarks.learning.results import path_of, policies_of, runs_of, save_policies, save_run
from benchmarks.learning.runs import StudyRun
from benchmarks.learning.studies import BY_KEY, STUDIES, Published, Study, agree, steps_text
from offpolicy.analysis.bootstrap import interquartile_mean_interval
from offpolicy.config.overrides import load_config
from offpolicy.errors import EXIT_INTERRUPTED

PENDULUM = Study("small", ("algo=sac", "env=pendulum"), 10_000, 3, -180.0, (Published(10_000, -162.0, 3.0, "zoo"),))
CALL = {"commit": "abc", "started": "2026", "hardware": {"cpu": "A Cpu"}, "versions": {}}


def finished(mean: float, minutes: float = 2.0) -> dict[str, Any]:
    curve = [[5_000.0, mean - 50.0], [10_000.0, mean]]
    final = {"episodes": 100, "mean": mean, "std": 80.0}
    return {"status": "finished", "wall_s": 60.0 * minutes, "calls": [CALL], "evaluations": curve, "final": final}


class FakeRun:
    """Ends after `looks` looks at it; `events` is what happened to all of them, in order."""

    def __init__(self, name: str, looks: int, events: list[str], status: str = "finished") -> None:
        self.study, self.seed, self.name = PENDULUM, 1, name
        self.results_dir: Path | None = None
        self._looks, self._events = looks, events
        self.raw = {"status": status, "wall_s": 1.0, "calls": [CALL], "evaluations": [], "final": {"mean": 1.0}}

    def is_ready(self) -> bool:
        return True

    def start(self) -> None:
        self._events.append(f"start {self.name}")

    def has_ended(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def stop(self) -> None:
        self._events.append(f"stop {self.name}")

    def finish(self) -> None:
        self._events.append(f"finish {self.name}")


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "POLL_S", 0.0)


def console() -> Console:
    return Console(file=io.StringIO(), width=100)


@pytest.mark.usefixtures("no_pause", "results_directory")
def test_so_many_runs_stand_beside_each_other_in_the_given_order() -> None:
    events: list[str] = []
    runs: Any = [FakeRun("a", 3, events), FakeRun("b", 0, events), FakeRun("c", 0, events)]
    assert learning.do(runs, 2, Budget(wait_s=0.0), console()) == 0
    assert events == ["start a", "start b", "finish b", "start c", "finish c", "finish a"]
    assert runs_of(PENDULUM)[1]["status"] == "finished"


@pytest.mark.usefixtures("no_pause", "results_directory")
def test_what_runs_when_the_time_is_up_is_stopped_and_counted_as_left() -> None:
    events: list[str] = []

    class Spent(Budget):
        def has(self, seconds: float) -> bool:
            return "start b" not in events

    runs: Any = [FakeRun(name, 9, events, "unfinished") for name in "abc"]
    assert learning.do(runs, 2, Spent(), console()) == 3
    assert events == ["start a", "start b", "stop a", "stop b", "finish a", "finish b"]
    assert runs_of(PENDULUM)[1]["status"] == "unfinished"


@pytest.mark.usefixtures("no_pause", "results_directory")
def test_an_interruption_stops_the_runs_and_keeps_what_they_have() -> None:
    events: list[str] = []

    class Interrupted(FakeRun):
        def has_ended(self) -> bool:
            raise KeyboardInterrupt

    runs: Any = [Interrupted("a", 1, events, "unfinished")]
    with pytest.raises(KeyboardInterrupt):
        learning.do(runs, 1, Budget(wait_s=0.0), console())
    assert events == ["start a", "stop a", "finish a"]
    assert 1 in runs_of(PENDULUM)


@pytest.mark.usefixtures("no_pause", "results_directory")
def test_a_student_waits_for_its_teacher_and_others_do_not_wait_with_it() -> None:
    events: list[str] = []

    class Student(FakeRun):
        def is_ready(self) -> bool:
            return "finish teacher" in events

    runs: Any = [FakeRun("teacher", 3, events), Student("student", 0, events), FakeRun("other", 0, events)]
    assert learning.do(runs, 2, Budget(wait_s=0.0), console()) == 0
    assert events[:3] == ["start teacher", "start other", "finish other"]
    assert events[3:] == ["finish teacher", "start student", "finish student"]


@pytest.mark.usefixtures("no_pause", "results_directory")
def test_a_student_whose_teacher_is_not_here_is_left_and_named(tmp_path: Path) -> None:
    student, shown = StudyRun(BY_KEY["hora-student"], 2, None, tmp_path), console()
    assert student.teacher == tmp_path / "hora-teacher" / "seed-2"
    assert not student.is_ready()
    assert learning.do([student], 2, Budget(wait_s=0.0), shown) == 1
    assert "hora-student/2: needs a run of hora-teacher" in shown.file.getvalue()  # type: ignore[attr-defined]
    student.teacher.mkdir(parents=True)
    (student.teacher / "summary.json").write_text('{"status": "completed"}')
    assert student.is_ready()
    assert student._beginning()[-1] == f"teacher={student.teacher}"


def test_the_last_evaluation_of_a_hand_has_physics_beyond_those_of_training() -> None:
    hand, other = BY_KEY["hora-blind"], BY_KEY["sac-pendulum"]
    assert hand.final_evaluation(3)[-1] == "env.kwargs.physics=held_out"
    assert hand.final_evaluation(1) == hand.final_evaluation(3)  # all seeds and all policies: the same starts
    assert hand.final_env().kwargs["physics"] == "held_out"
    assert "physics" not in hand.resolved().env.kwargs
    assert other.final_evaluation(1) != other.final_evaluation(3)
    assert other.final_env() == other.resolved().env


def test_a_result_of_another_preset_is_none_of_todays(results_directory: Path) -> None:
    save_run(PENDULUM, 2, finished(-150.0))
    save_run(PENDULUM, 1, finished(-160.0))
    assert list(runs_of(PENDULUM)) == [1, 2]
    text = path_of("small").read_text()
    stored = json.loads(text)
    assert stored["command"] == "offpolicy train algo=sac env=pendulum total_timesteps=10000"
    assert results_directory in path_of("small").parents
    stored["configuration"]["algo"]["batch_size"] = 1
    path_of("small").write_text(json.dumps(stored))
    assert runs_of(PENDULUM) == {}
    del stored["configuration"]["algo"]["batch_size"]  # a key that the version of then did not know
    path_of("small").write_text(json.dumps(stored))
    assert list(runs_of(PENDULUM)) == [1, 2]


def test_only_keys_that_both_have_are_compared() -> None:
    assert agree({"a": {"b": 1, "old": 3}}, {"a": {"b": 1, "new": 2}})
    assert not agree({"a": {"b": 1}}, {"a": {"b": 2}})
    assert agree({"a": {"b": "auto"}}, {"a": {"b": "sync"}})


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.key)
def test_every_study_is_a_configuration_that_exists(study: Study) -> None:
    config = study.resolved("seed=3")
    assert (config.seed, config.total_timesteps) == (3, study.env_steps)
    assert (config.threads.learner, config.threads.collector) == (1, 1)
    assert agree(study.configuration(), study.configuration())
    assert len(BY_KEY) == len(STUDIES)


def test_policies_that_learn_nothing_are_measured_and_kept(results_directory: Path) -> None:
    found = policies(load_config(["algo=appo", "env=cartpole", "run_dir=unused"]).env)
    assert 15.0 < found["random"]["mean"] < 30.0  # published: about 22
    assert 8.0 < found["constant"]["mean"] < 11.0  # pushed to one side, the pole falls at once
    assert found["random"]["episodes"] == 100
    save_policies("CartPole-v1", found)
    save_policies("CartPole-v1", {"scripted": {"mean": 1.0}})
    assert policies_of("CartPole-v1") == {**found, "scripted": {"mean": 1.0}}
    assert policies_of("Ant-v5") == {}
    assert path_of("nothing-learnt").parent == results_directory / "learning"


def test_a_study_is_shown_with_spread_bar_and_the_policies_beside_it(results_directory: Path) -> None:
    save_policies("Pendulum-v1", {"random": {"mean": -1_229.0}, "constant": {"mean": -1_180.4}})
    one = Judged(PENDULUM, {1: finished(-150.0), 2: finished(-160.0, 5.0), 3: finished(-170.0)})
    cells = row(one)
    assert cells[:4] == ["`small`", "10k", "3", "-160.0 ± 10.0"]
    assert cells[4].startswith("-160.0 [-170.0, -150.0")
    assert cells[5:] == ["-180, reached", "-1,229", "-1,180", "2 to 5"]
    assert row(Judged(PENDULUM, {1: finished(-150.0)}))[-1] == "2"  # of one seed
    assert results_directory.is_dir()


def test_one_seed_and_a_missed_bar_are_said() -> None:
    cells = row(Judged(PENDULUM, {1: finished(-308.0)}))
    assert cells[2:6] == ["one seed", "-308.0", "", "-180, **missed**"]
    assert row(Judged(PENDULUM, {1: finished(-1.0), 2: finished(-2.0)}))[2] == "2 of 3"


def test_runs_that_are_not_finished_are_said_and_their_studies_not_judged() -> None:
    half = {"status": "unfinished", "calls": [CALL], "evaluations": [[4_000.0, -900.0]], "wall_s": 9.0}
    broken = {"status": "failed", "reason": "learner failed", "calls": [CALL], "wall_s": 9.0}
    found = [Judged(PENDULUM, {1: half, 2: broken}), Judged(BY_KEY["td3-pendulum"], {})]
    assert results_table(found) == page.NO_RUN
    text = details(found)
    assert "seed 1: unfinished, 4,000 of 10,000 env steps" in text
    assert "seed 2: failed, learner failed" in text
    assert "published: -162 ± 3 at 10k (zoo)" in text
    assert "commit abc; A Cpu" in text
    assert "td3-pendulum" not in text
    assert [line.split("`")[1] for line in missing(found).splitlines()[::2]] == ["small", "td3-pendulum"]


def test_the_curves_of_an_environment_are_one_picture() -> None:
    found = [Judged(PENDULUM, {1: finished(-150.0), 2: finished(-160.0)}), Judged(BY_KEY["td3-pendulum"], {})]
    drawn = page.pictures(found)
    assert list(drawn) == ["learning-pendulum-v1.svg"]
    assert b"small (2 runs)" in drawn["learning-pendulum-v1.svg"]


def test_a_picture_is_named_without_the_module_that_registers_its_environment() -> None:
    drawn = page.pictures([Judged(BY_KEY["hora-blind"], {1: finished(-150.0)})])
    assert list(drawn) == ["learning-handrotation-v1.svg"]


def test_a_picture_of_a_study_that_is_gone_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("learning-gone-v0.svg", "panel.svg"):
        (tmp_path / name).touch()
    for module, name in ((page, "PAGE"), (page.hora_page, "PAGE")):
        monkeypatch.setattr(module, name, tmp_path / f"{module.__name__}.md")
    monkeypatch.setattr(page, "REPOSITORY", tmp_path)
    monkeypatch.setattr(page, "PICTURES", tmp_path)
    monkeypatch.setattr(page, "judged", list)
    monkeypatch.setattr(page.hora_page, "render", str)
    page.main()
    assert [path.name for path in tmp_path.glob("*.svg")] == ["panel.svg"]


def test_the_generation_of_a_processor_is_named_for_each_study() -> None:
    calls = [{**CALL, "hardware": {"cpu": "A Cpu", "cpu_version": version}} for version in ("25/1/1", "25/17/1")]
    text = details([Judged(PENDULUM, {1: {**finished(-150.0), "calls": calls}})])
    assert "commit abc; A Cpu (family 25, model 1), A Cpu (family 25, model 17)" in text


@pytest.fixture
def signal_handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("results_directory", "signal_handlers")
def test_only_so_many_seeds_are_run_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(learning, "_look_at_policies", lambda study, console: None)
    monkeypatch.setattr(learning, "do", lambda waiting, *rest: asked.extend(run.name for run in waiting) or 0)
    assert learning.main(["--only", "sac-pendulum,td3-halfcheetah", "--seeds", "2"]) == 0
    assert asked == ["sac-pendulum/1", "sac-pendulum/2", "td3-halfcheetah/1", "td3-halfcheetah/2"]


@pytest.mark.usefixtures("results_directory", "signal_handlers")
def test_studies_come_in_the_order_in_which_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(learning, "_look_at_policies", lambda study, console: None)
    monkeypatch.setattr(learning, "do", lambda waiting, *rest: asked.extend(run.name for run in waiting) or 0)
    words = "td3-halfcheetah,sac-pendulum,td3-halfcheetah"
    assert learning.main(["--only", words, "--seeds", "1"]) == 0
    assert asked == ["td3-halfcheetah/1", "sac-pendulum/1"]


@pytest.mark.usefixtures("results_directory", "signal_handlers")
def test_a_failed_run_is_tried_again_where_its_study_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(learning, "_look_at_policies", lambda study, console: None)
    monkeypatch.setattr(learning, "do", lambda waiting, *rest: asked.extend(run.name for run in waiting) or 0)
    study = BY_KEY["sac-pendulum"]
    monkeypatch.setattr(learning, "BY_KEY", {study.key: study})
    save_run(study, 1, {"status": "failed", "reason": "exit code 70", "wall_s": 1.0, "calls": [CALL]})
    save_run(study, 2, finished(-150.0))
    assert learning.main(["--seeds", "2"]) == 1
    assert asked == []
    learning.main(["--only", "sac-pendulum", "--seeds", "2"])
    assert asked == ["sac-pendulum/1"]


@pytest.mark.usefixtures("results_directory", "signal_handlers", "no_pause")
def test_published_runs_are_made_anew_in_a_directory_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that the README names to repeat a number did nothing: the number was there."""
    monkeypatch.setattr(learning, "_look_at_policies", lambda study, console: None)
    monkeypatch.setattr(learning, "BY_KEY", {PENDULUM.key: PENDULUM})
    for seed in (1, 2, 3):
        save_run(PENDULUM, seed, finished(-150.0 - seed))
    before = path_of(PENDULUM.key).read_text()
    assert learning.main(["--only", "small"]) == 0
    assert "small: the runs that were asked for are in" in (shown := capsys.readouterr().out)
    assert "make learning-curves only=small again=runs/again" in shown

    events, asked = list[str](), list[Path]()

    def short(study: Study, seed: int, raw: Any, directory: Path, results_dir: Path) -> FakeRun:
        asked.append(directory)
        run = FakeRun(f"{study.key}/{seed}", 0, events)
        run.seed, run.results_dir = seed, results_dir
        return run

    monkeypatch.setattr(learning, "StudyRun", short)
    again = tmp_path / "again"
    words = ["--only", "small", "--seeds", "2", "--again", str(again)]
    assert learning.main(words) == 0
    assert "small/1: finished, return 1.0 after 10,000 env steps (published: -151.0)" in capsys.readouterr().out
    assert asked == [again, again]
    assert list(runs_of(PENDULUM, again)) == [1, 2]
    assert path_of(PENDULUM.key).read_text() == before, "the published results stay"
    assert learning.main(words) == 0
    assert asked == [again, again], "what is finished there is not made a third time"
    assert f"small: the runs that were asked for are in {again}" in capsys.readouterr().out


def test_runs_are_made_anew_neither_over_the_published_results_nor_over_the_runs_of_the_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for taken in (tmp_path / "file", runs.DIRECTORY, runs.DIRECTORY / "x", path_of("x").parent, ""):
        with pytest.raises(SystemExit):
            learning.main(["--again", str(taken)])
        assert "allowed a directory of its own, such as runs/again" in capsys.readouterr().err


def test_of_a_student_the_teacher_is_made_anew_too(capsys: pytest.CaptureFixture[str]) -> None:
    learning._say_that_all_is_there(BY_KEY["hora-student"], None, Console(width=200))
    assert "only=hora-teacher,hora-student again=runs/again" in capsys.readouterr().out


@pytest.mark.usefixtures("results_directory", "signal_handlers")
def test_sigterm_ends_it_as_ctrl_c_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "_look_at_policies", lambda study, console: None)
    monkeypatch.setattr(learning, "do", lambda *given: os.kill(os.getpid(), signal.SIGTERM))
    assert learning.main(["--only", "sac-pendulum"]) == EXIT_INTERRUPTED


def test_the_committed_page_is_made_of_the_committed_results() -> None:
    assert page.PAGE.read_text() == page.render(judged()), "run `make learning-page`"


def test_the_interquartile_mean_leaves_out_whole_quarters() -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0, 100.0])
    assert interquartile_mean_interval(values).value == 2.0
    assert interquartile_mean_interval(values[:3]).value == 1.0
    low, high = interquartile_mean_interval(values)[1:]
    assert 0.0 <= low < 2.0 < high <= 100.0


def test_env_steps_are_written_short() -> None:
    assert [steps_text(steps) for steps in (61_000, 100_000, 1_000_000)] == ["61k", "100k", "1M"]


def test_an_unknown_study_is_refused_with_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--only", "sac-pendulm"], ["--jobs", "0"]):
        with pytest.raises(SystemExit):
            learning.main(words)
    assert "got sac-pendulm, allowed sac-pendulum" in capsys.readouterr().err


def stand_in(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """This Python code is what a run executes."""
    monkeypatch.setattr(runs, "offpolicy_program", lambda: [sys.executable, "-c", code])


def interrupted(tmp_path: Path, raw: dict[str, Any] | None, summary: dict[str, Any]) -> StudyRun:
    """A run that has a checkpoint, and the summary of its last end."""
    run = StudyRun(PENDULUM, 1, raw, tmp_path)
    (run.path / "checkpoints" / "step-100").mkdir(parents=True)
    (run.path / "config.yaml").write_text(yaml.safe_dump(PENDULUM.resolved().to_mapping()))
    (run.path / "summary.json").write_text(json.dumps(summary))
    return run


def begun(**known: Any) -> dict[str, Any]:
    return {"status": "unfinished", "wall_s": 60.0, "calls": [CALL], **known}


FAILED_BEFORE = {"status": "failed", "reason": "the disk was full"}


@pytest.mark.usefixtures("results_directory")
@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        ("import os; os.kill(os.getpid(), 9)", "unfinished", None),
        ("raise SystemExit(143)", "unfinished", None),
        ("raise SystemExit(2)", "failed", "exit code 2"),
    ],
)
def test_a_run_that_was_killed_is_left_and_a_reason_is_that_of_this_start(
    code: str, status: str, reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, code)
    run = interrupted(tmp_path, begun(reason="the disk was full"), FAILED_BEFORE)
    run.start()
    run.finish()
    assert (run.raw["status"], run.raw.get("reason")) == (status, reason)
    assert len(run.raw["calls"]) == 2


def test_a_run_that_was_interrupted_before_it_began_has_nothing(tmp_path: Path) -> None:
    run = interrupted(tmp_path, None, {"status": "completed"})
    run.finish()
    assert run.raw == {"status": "unfinished", "wall_s": 0.0, "calls": []}


@pytest.mark.usefixtures("results_directory")
def test_a_run_that_says_why_it_failed_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import sys; open(sys.argv[2] + '/summary.json', 'w').write({json.dumps(FAILED_BEFORE)!r}); sys.exit(70)"
    stand_in(monkeypatch, code)
    run = interrupted(tmp_path, begun(), {"status": "interrupted"})
    run.start()
    run.finish()
    assert (run.raw["status"], run.raw["reason"]) == ("failed", "the disk was full")


@pytest.mark.usefixtures("results_directory")
@pytest.mark.parametrize("name", [None, "again"])
def test_a_run_is_written_down_when_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    stand_in(monkeypatch, "")
    results_dir = None if name is None else tmp_path / name
    run = StudyRun(PENDULUM, 1, None, tmp_path, results_dir)
    run.start()
    kept = runs_of(PENDULUM, results_dir)[1]
    run.finish()
    assert kept["status"] == "unfinished"
    assert [call["commit"] for call in kept["calls"]] == [run.raw["calls"][0]["commit"]]


def test_a_run_that_nothing_is_written_down_of_begins_anew(tmp_path: Path) -> None:
    unknown = interrupted(tmp_path / "a", None, {"status": "completed"})
    assert unknown._resumption() == []
    known = interrupted(tmp_path / "b", begun(), {"status": "interrupted"})
    assert known._resumption() == ["resume", str(known.path)]


@pytest.mark.usefixtures("results_directory")
def test_a_run_whose_evaluation_alone_is_left_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "raise SystemExit('started')")
    monkeypatch.setattr(StudyRun, "_final", lambda run: {"mean": -150.0})
    done = {"status": "completed", "rates": {"steps_per_sec": 99.0}}
    run = interrupted(tmp_path, begun(), done)
    records = [{"env_steps": steps, "wall_s": 0.01 * steps, "eval/mean_reward": -1.0} for steps in (5_000, 10_000)]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    run.start()
    assert run.has_ended()
    run.finish()
    assert (run.raw["status"], run.raw["final"]["mean"]) == ("finished", -150.0)
    assert run.raw["calls"] == [CALL]
    assert run.raw["wall_s"] == 100.0  # of the records: the call that was killed has noted 60


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_and_is_judged(results_directory: Path, tmp_path: Path) -> None:
    study = Study("real", ("algo=sac", "env=pendulum", "algo.learning_starts=500", "log.every_s=0.2"), 2_000, 1)
    first = StudyRun(study, 1, None, tmp_path)
    first.start()
    metrics = first.path / "metrics.jsonl"
    while not (metrics.is_file() and '"rollout/ep_rew_mean"' in metrics.read_text()):
        assert not first.has_ended()
    first.stop()
    first.finish()
    assert first.raw["status"] == "unfinished"
    save_run(study, 1, first.raw)
    second = StudyRun(study, 1, runs_of(study)[1], tmp_path)
    second.start()
    second._process.wait()  # type: ignore[union-attr]
    second.finish()
    assert second.raw["status"] == "finished"
    assert len(second.raw["calls"]) == 2
    assert second.raw["evaluations"][-1][0] == 2_000.0
    steps = [at for at, _ in second.raw["evaluations"]]
    assert steps == sorted(set(steps))  # each once, those of before the interruption too
    assert steps[0] < 700.0
    assert len(steps) > 10
    assert second.raw["final"]["episodes"] == 100
    assert -2_000.0 < second.raw["final"]["mean"] < 0.0
    assert "resuming at env step" in second.path.with_suffix(".log").read_text()
    assert MORE_LEFT == 75
