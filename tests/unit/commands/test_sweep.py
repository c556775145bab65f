"""A sweep fills the cores with runs, ends trials by their evaluations, goes on after a kill, and names the best."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from offpolicy import cli
from offpolicy.commands import sweep as module
from offpolicy.commands.jobs import NotSubmitted
from offpolicy.commands.sweep import SweepOptions, final_return, sweep
from offpolicy.commands.sweep_study import SweepStudy
from offpolicy.config.overrides import load_config
from offpolicy.errors import ConfigError, OffPolicyError, RunDirBusyError
from offpolicy.launch.run_lock import RunLock
from offpolicy.run_names import runs_in

SPACE = "parameters:\n  algo.gamma: {low: 0.9, high: 0.999}\n"
OPTIONS = SweepOptions(trials=3, seeds=2, jobs=2, out=None, launcher="local", sbatch="", prunes=True)
Outcome = Callable[[float, int], tuple[int, list[float]]]  # of gamma and seed: exit code and returns


class FakeJob:
    """A run that has written its evaluations, and ends at the second look."""

    def __init__(self, code: int, launcher: FakeLauncher) -> None:
        self._code, self._launcher, self._polls, self.was_stopped = code, launcher, 0, False
        self.num_asked_before = 0  # runs that had been asked to stop when this one was waited for
        launcher.running += 1
        launcher.most = max(launcher.most, launcher.running)

    def poll(self) -> int | None:
        self._polls += 1
        if self._polls == 2:
            self._launcher.running -= 1
        return self._code if self._polls >= 2 else None

    def ask_to_stop(self) -> None:
        self._launcher.num_asked += 1

    def stop(self) -> None:
        self.was_stopped, self.num_asked_before = True, self._launcher.num_asked
        self._launcher.running -= 1

    def last_error(self) -> str:
        return "offpolicy: said why"


class FakeLauncher:
    """Runs that take no time; `outcome` says what each does."""

    poll_s = 0.0

    def __init__(self, outcome: Outcome) -> None:
        self.outcome, self.started = outcome, list[tuple[tuple[str, ...], Path]]()
        self.jobs, self.running, self.most, self.num_asked = list[FakeJob](), 0, 0, 0

    def start(self, words: Sequence[str], directory: Path) -> FakeJob:
        self.started.append((tuple(words), directory))
        given = dict(word.split("=", 1) for word in words)
        code, returns = self.outcome(float(given["algo.gamma"]), int(given["seed"]))
        run = directory / "run"
        run.mkdir(parents=True, exist_ok=True)
        lines = [{"env_steps": n, "mean_reward": each} for n, each in enumerate(returns)]
        (run / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run / "metrics.jsonl").write_text('{"env_steps": 1, "eval\n')  # being replaced; and long, in a real run
        (run / "summary.json").write_text(json.dumps({"eval": {"mean_reward": returns[-1]}}))
        self.jobs.append(FakeJob(code, self))
        return self.jobs[-1]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with a space; no environment is probed, and nothing is compared."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.yaml").write_text(SPACE)
    monkeypatch.setattr(module, "preflight", lambda cfg, is_elsewhere: None)
    monkeypatch.setattr(module, "compare", lambda words: 0)
    monkeypatch.setattr(module, "num_usable_cores", lambda: 6)


def launched(monkeypatch: pytest.MonkeyPatch, outcome: Outcome) -> FakeLauncher:
    launcher = FakeLauncher(outcome)
    monkeypatch.setattr(module, "LocalLauncher", lambda: launcher)
    return launcher


def swept(*words: str, **options: Any) -> int:
    return sweep(Path("space.yaml"), words, replace(OPTIONS, **options))


def near(gamma: float, seed: int) -> tuple[int, list[float]]:
    """The nearer gamma is to 0.95, the better."""
    return 0, [-1000.0, -1000.0 * abs(gamma - 0.95) - seed]


def test_the_best_is_printed_as_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    launcher = launched(monkeypatch, near)
    assert swept("algo=sac", trials=6) == 0
    tried = {next(word for word in words if word.startswith("algo.gamma=")) for words, _ in launcher.started}
    best = min(tried, key=lambda word: abs(float(word.split("=")[1]) - 0.95))
    assert capsys.readouterr().out.splitlines()[-1] == f"offpolicy train algo=sac {best}"
    assert len(tried) == 6


def test_the_default_is_the_first_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = launched(monkeypatch, near)
    swept()
    assert [word for word in launcher.started[0][0] if "gamma" in word] == ["algo.gamma=0.99"]


def test_arguments_of_the_environment_have_no_default_to_begin_with(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("space.yaml").write_text(f"{SPACE}  env.kwargs.g: {{values: [null, 9.5]}}\n")
    firsts: list[object] = []
    monkeypatch.setattr(module.SweepStudy, "suggest_first", lambda self, values: firsts.append(values))
    launcher = launched(monkeypatch, near)
    swept(trials=2, seeds=1)
    words = {word for words, _ in launcher.started for word in words if word.startswith("env.kwargs.g=")}
    assert words
    assert words <= {"env.kwargs.g=null", "env.kwargs.g=9.5"}
    assert not firsts


def test_every_trial_has_its_seeds_and_a_part_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = launched(monkeypatch, near)
    swept("total_timesteps=5000", trials=2, seeds=3, jobs=2)
    seeds = [word for words, _ in launcher.started for word in words if word.startswith("seed=")]
    assert sorted(seeds) == sorted(["seed=1", "seed=2", "seed=3"] * 2)
    assert all(
        {"threads.learner=3", "threads.collector=1", "total_timesteps=5000"} <= set(words)
        for words, _ in launcher.started
    )
    assert launcher.most == 2


def test_given_threads_are_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    launcher = launched(monkeypatch, near)
    swept("threads.learner=2", trials=1)
    (command,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("offpolicy train")]
    assert "threads.learner=2" in command
    assert "threads.collector" not in command
    assert [word for word in launcher.started[0][0] if word.startswith("threads.learner")] == ["threads.learner=2"]


def test_jobs_of_slurm_have_the_cores_of_their_node_and_not_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher, elsewhere = FakeLauncher(near), list[bool]()
    monkeypatch.setattr(module, "preflight", lambda cfg, is_elsewhere: elsewhere.append(is_elsewhere))
    monkeypatch.setattr(module, "check_slurm", lambda: None)
    monkeypatch.setattr(module, "SlurmLauncher", lambda options: launcher)
    swept("threads.learner=200", launcher="slurm", trials=1)
    launched(monkeypatch, near)
    swept("threads.learner=2", launcher="local", trials=1, out=Path("other"))
    assert elsewhere == [True, False]


class FullQueue(FakeLauncher):
    """Takes no job while `most_jobs` run, as SLURM does where a user has too many, nor one of some numbers, from 1."""

    def __init__(self, refused: Collection[int] = (), most_jobs: int = 1000) -> None:
        super().__init__(near)
        self.refused, self.most_jobs, self.num_asked_for = refused, most_jobs, 0

    def start(self, words: Sequence[str], directory: Path) -> FakeJob:
        self.num_asked_for += 1
        if self.running >= self.most_jobs or self.num_asked_for in self.refused:
            raise NotSubmitted("sbatch: error: QOSMaxSubmitJobPerUserLimit")
        return super().start(words, directory)


def on_slurm(monkeypatch: pytest.MonkeyPatch, launcher: FakeLauncher) -> None:
    monkeypatch.setattr(module, "check_slurm", lambda: None)
    monkeypatch.setattr(module, "SlurmLauncher", lambda options: launcher)


def test_jobs_beyond_those_that_slurm_allows_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They ended the sweep, with the jobs of all other trials."""
    launcher = FullQueue(most_jobs=1)
    on_slurm(monkeypatch, launcher)
    assert swept(trials=6, launcher="slurm", jobs=4) == 0
    out = capsys.readouterr().out
    assert "failed" not in out
    assert "waits until another run has ended: sbatch: error: QOSMaxSubmitJobPerUserLimit" in out
    assert launcher.most == 1
    assert not any(job.was_stopped for job in launcher.jobs)


def test_slurm_that_takes_no_job_any_more_ends_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = FullQueue(refused=range(5, 10_000))
    on_slurm(monkeypatch, launcher)
    with pytest.raises(OffPolicyError, match="the sweep stops, as 3 jobs in a row were not submitted: sbatch: error"):
        swept(trials=50, launcher="slurm")


def test_the_first_job_that_slurm_does_not_take_ends_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    on_slurm(monkeypatch, FullQueue(refused=(1,)))
    with pytest.raises(OffPolicyError, match="as no trial has gone well: seed 1 was not submitted: sbatch: error"):
        swept(launcher="slurm")


def test_a_trial_that_is_worse_is_stopped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    launcher = launched(monkeypatch, lambda gamma, seed: (0, [-1.0] * 3 if len(launcher.jobs) < 8 else [-999.0] * 3))
    assert swept(trials=6, jobs=1, seeds=2) == 0
    assert "trial 4: pruned after 2 evaluations" in capsys.readouterr().out
    assert [job.was_stopped for job in launcher.jobs] == [False] * 8 + [True, True]


def test_the_first_failure_stops_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, lambda gamma, seed: (65, [0.0]))
    with pytest.raises(OffPolicyError, match="as no trial has gone well: seed 1 exited with 65: offpolicy: said why"):
        swept(jobs=1)


def test_a_later_failure_is_a_trial_without_a_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = launched(monkeypatch, lambda gamma, seed: (65 if len(launcher.jobs) == 2 else 0, [-5.0, -5.0]))
    assert swept(trials=3, jobs=1) == 0
    assert "trial 1: failed: seed 1 exited with 65" in capsys.readouterr().out


def test_a_run_that_cannot_be_stopped_is_named_and_the_others_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`scancel` fails for a job that has just ended, and the jobs after it went on."""
    launcher = launched(monkeypatch, near)

    def refuse() -> None:
        raise OffPolicyError("scancel 7: Invalid job id specified")

    def interrupt(seconds: float) -> None:
        monkeypatch.setattr(launcher.jobs[0], "ask_to_stop", refuse)
        raise KeyboardInterrupt

    monkeypatch.setattr(module.time, "sleep", interrupt)
    assert swept(jobs=3) == 130
    assert [job.was_stopped for job in launcher.jobs] == [False, True, True]
    assert "trial 0: seed 1 was not stopped: scancel 7: Invalid job id specified" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_stops_the_runs_as_ctrl_c_does(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They died with the sweep, without a checkpoint. A terminal that closes sends both signals."""
    launcher = launched(monkeypatch, near)
    stop = FakeJob.stop

    def stop_slowly(job: FakeJob) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        stop(job)

    monkeypatch.setattr(FakeJob, "stop", stop_slowly)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: os.kill(os.getpid(), number))
    assert swept(jobs=3) == 143
    assert [job.was_stopped for job in launcher.jobs] == [True] * 3
    assert "interrupted: the same command goes on" in capsys.readouterr().out
    assert signal.getsignal(number) is signal.SIG_DFL


def test_all_runs_are_asked_to_stop_before_one_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may take a minute to save: eight runs took eight minutes to stop, one after the other."""
    launcher = launched(monkeypatch, near)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.time, "sleep", interrupt)
    assert swept(jobs=5) == 130
    assert [job.num_asked_before for job in launcher.jobs] == [5] * 5


def test_ctrl_c_stops_the_runs_and_the_same_command_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = launched(monkeypatch, near)

    def interrupt(seconds: float) -> None:
        if len(launcher.jobs) >= 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(module.time, "sleep", interrupt)
    assert swept() == 130
    assert launcher.running == 0
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    again = launched(monkeypatch, near)
    assert swept() == 0
    assert "goes on" in capsys.readouterr().out
    assert {directory for _, directory in again.started} & {directory for _, directory in launcher.started}
    assert len({directory.parent for _, directory in (*launcher.started, *again.started)}) == 3


@pytest.mark.filterwarnings("error::UserWarning")
def test_what_was_reported_before_an_interruption_is_not_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna warned of each evaluation of a trial that went on."""
    launched(monkeypatch, near)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    is_first = iter([True])
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None if next(is_first, False) else interrupt(seconds))
    assert swept(trials=1) == 130
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    launched(monkeypatch, near)
    assert swept(trials=1) == 0


def test_a_finished_sweep_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, near)
    swept()
    again = launched(monkeypatch, near)
    assert swept() == 0
    assert again.started == []


def test_values_that_a_rule_refuses_together_fail_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("space.yaml").write_text(
        "parameters:\n  algo.gamma: {values: [0.9, 0.99]}\n  algo.learning_starts: {values: [600, 10]}\n"
    )
    launched(monkeypatch, near)
    assert swept("total_timesteps=500", trials=8) == 0
    out = capsys.readouterr().out
    assert "refused: algo.learning_starts: got 600, allowed less than total_timesteps=500" in out
    assert "complete" in out


def test_a_trial_leaves_out_what_nothing_reads_beside_its_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("space.yaml").write_text(
        "parameters:\n  algo.gamma: {values: [0.9, 0.95]}\n  algo.advantage: {values: [vtrace, gae]}\n"
        "  algo.trace_clip: {low: 0.5, high: 1.0}\n"
    )
    launcher = launched(monkeypatch, near)
    assert swept("algo=appo", "algo.rho_clip=2.0", trials=8) == 0
    has_bounds = dict[str, set[bool]]()
    for words, _ in launcher.started:
        advantage = load_config(words).algo.advantage
        found = {any(word.startswith(key) for word in words) for key in ("algo.rho_clip=", "algo.trace_clip=")}
        has_bounds[advantage] = has_bounds.get(advantage, set()) | found
    assert has_bounds == {"vtrace": {True}, "gae": {False}}
    load_config(shlex.split(capsys.readouterr().out.splitlines()[-1])[2:])


def source_run(directory: Path, gamma: float) -> Path:
    directory.mkdir(parents=True)
    cfg = load_config(["algo=td3", f"algo.gamma={gamma}", "algo.tau=0.02"])
    (directory / "config.yaml").write_text(yaml.safe_dump(cfg.to_mapping()))
    return directory


def test_the_values_of_another_run_are_kept_for_all_trials_and_later_calls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launcher = launched(monkeypatch, near)
    run = source_run(tmp_path / "runs/one", gamma=0.91)
    assert cli.main(["sweep", "space.yaml", f"config={run}", "algo.tau=0.03", "--trials", "2"]) == 0
    kept = tmp_path / "sweeps/space/source.yaml"
    assert kept.read_text() == (run / "config.yaml").read_text()
    cfg = load_config([word for word in launcher.started[0][0] if not word.startswith("log.")])
    assert (cfg.algo.name, cfg.algo.tau, cfg.algo.gamma) == ("td3", 0.03, 0.91)  # the first has the values of before
    assert all(f"config={kept}" in words for words, _ in launcher.started)
    assert not runs_in(Path("sweeps"))  # or the sweep would hide its runs

    assert cli.main(["sweep", "space.yaml", f"config={run}", "algo.tau=0.03", "--trials", "3"]) == 0
    assert len(launcher.started) == 3  # the same sweep


def test_a_sweep_goes_on_with_no_other_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = launched(monkeypatch, near)
    one, other = (source_run(tmp_path / "runs" / name, gamma) for name, gamma in (("one", 0.91), ("other", 0.92)))
    assert cli.main(["sweep", "space.yaml", f"config={one}", "--trials", "1"]) == 0
    assert cli.main(["sweep", "space.yaml", f"config={other}", "--trials", "2"]) == 2
    assert "config.yaml is not what this sweep began with; write config=" in capsys.readouterr().err
    assert len(launcher.started) == 1


def test_code_beside_the_configuration_of_another_run_needs_trust(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = launched(monkeypatch, near)
    run = source_run(tmp_path / "runs/one", gamma=0.91)
    (run / "foreign_envs.py").write_text("raise SystemExit('was imported')\n")
    monkeypatch.syspath_prepend(str(run))
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("id: Pendulum-v1", "id: foreign_envs:Own-v0"))
    assert cli.main(["sweep", "space.yaml", f"config={run}", "--trials", "1"]) == 2
    assert "read it, then add --trust" in capsys.readouterr().err
    assert not launcher.started
    assert cli.main(["sweep", "space.yaml", f"config={run}", "--trials", "1", "--trust"]) == 0


def test_two_sweeps_of_one_directory_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launched(monkeypatch, near)
    (tmp_path / "sweeps/space").mkdir(parents=True)
    lock = RunLock(tmp_path / "sweeps/space")
    with pytest.raises(RunDirBusyError):
        swept()
    lock.release()


def test_a_comparison_names_the_trials_that_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first trial was the best, the second one was called the first."""
    compared: list[str] = []
    monkeypatch.setattr(module, "compare", compared.extend)
    launcher = launched(monkeypatch, lambda gamma, seed: (0, [-1.0 if len(launcher.started) == 1 else -2.0] * 2))
    assert swept(trials=2, seeds=1, jobs=1) == 0
    assert [word.partition("=")[0] for word in compared] == ["trial 1", "trial 0"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["seed=3"], "seed: given on the command line, not allowed in a sweep"),
        (["algo.gamma=0.9"], "algo.gamma: given on the command line, not allowed: the space searches it"),
        (["eval.episodes=0"], "eval.episodes: got 0, allowed 1 or more in a sweep"),
        (["algo.tau=3"], "algo.tau: got 3, allowed a number"),
        (["seed=3", "algo.bach=3"], "algo.bach: unknown key"),  # beside the seed, not after it
        (["init_from=latest"], "init_from: got 'latest', allowed the name of a run in a sweep: latest may be another"),
        (["algo=hora", "stage=adapt", "teacher=runs/latest"], "teacher: got 'runs/latest', allowed the name of a run"),
        (["algo.actor_lr={start:0.001,end:0.0}"], "actor_lr.start: given on the command line, not allowed: the space"),
        (["--trials", "0"], "--trials"),
        (["--sbatch=--partition=gpu"], "--sbatch: got '--partition=gpu', allowed with --launcher slurm"),
        (["--launcher=slurm", "--sbatch=--comment='x"], "allowed options as a shell reads them (No closing quotation)"),
        (["--out", "space.yaml/x"], "--out: space.yaml/x cannot be made: Not a directory; write another one"),
    ],
)
def test_bad_input_exits_2_before_any_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    launcher = launched(monkeypatch, near)
    if "actor_lr" in words[0]:
        Path("space.yaml").write_text(f"{SPACE}  algo.actor_lr: {{low: 0.0001, high: 0.01, log: true}}\n")
    try:
        code = cli.main(["sweep", "space.yaml", *words])
    except SystemExit as refused:
        code = int(refused.code or 0)
    assert (code, launcher.started) == (2, [])
    assert problem in capsys.readouterr().err


def test_a_signal_before_the_first_run_has_the_same_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, near)
    monkeypatch.setattr(SweepStudy, "suggest_first", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert cli.main(["sweep", "space.yaml"]) == 143


def test_episodes_that_every_trial_has_may_be_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launched(monkeypatch, near)
    run = source_run(tmp_path / "runs/one", gamma=0.91)
    text = (run / "config.yaml").read_text()
    assert load_config([f"config={run}"]).eval.episodes == 10
    (run / "config.yaml").write_text(text.replace("  episodes: 10\n", "  episodes: 0\n"))
    assert load_config([f"config={run}"]).eval.episodes == 0
    Path("space.yaml").write_text(f"{SPACE}  eval.episodes: {{values: [2, 4]}}\n")
    assert swept(f"config={run}") == 0


def test_a_searched_run_may_not_be_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, near)
    Path("space.yaml").write_text(f"{SPACE}  init_from: {{values: [latest, runs/a]}}\n")
    with pytest.raises(ConfigError, match="init_from: got 'latest', allowed the name of a run"):
        swept()


@pytest.mark.parametrize(("starts", "totals"), [([100, 700], [600, 900]), ([900, 700], [800, 600])])
def test_a_parameter_that_can_be_used_beside_another_one_is_not_refused(
    monkeypatch: pytest.MonkeyPatch, starts: list[int], totals: list[int]
) -> None:
    """Neither can beside the defaults: 1,000 steps before learning starts, which nobody gave."""
    text = f"{SPACE}  algo.learning_starts: {{values: {starts}}}\n  total_timesteps: {{values: {totals}}}\n"
    Path("space.yaml").write_text(text)
    launcher = launched(monkeypatch, near)
    assert swept(trials=8) == 0
    assert launcher.started


def test_a_parameter_that_can_be_used_beside_two_others_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first update is due at env step 25,400, with the last value of each."""
    totals = "[20000, 25500]"
    lines = {"algo.utd": "[3.9e-5, 4.0e-5]", "algo.learning_starts": "[1400, 400]", "total_timesteps": totals}
    text = "".join(f"  {key}: {{values: {values}}}\n" for key, values in lines.items())
    Path("space.yaml").write_text(f"{SPACE}{text}")
    launcher = launched(monkeypatch, near)
    assert swept(trials=16) == 0
    assert launcher.started


def test_no_trial_may_be_without_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("space.yaml").write_text(f"{SPACE}  eval.episodes: {{values: [0, 2]}}\n")
    launched(monkeypatch, near)
    with pytest.raises(ConfigError, match=r"eval.episodes: got 0, allowed 1 or more in a sweep"):
        swept()


def test_a_sweep_that_was_moved_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launcher = launched(monkeypatch, near)
    run = source_run(tmp_path / "runs/one", gamma=0.91)
    words = ["sweep", "space.yaml", f"config={run}", "--trials"]
    assert cli.main([*words, "2", "--out", "here"]) == 0
    Path("here").rename("there")
    assert cli.main([*words, "3", "--out", "there"]) == 0
    assert len(launcher.started) == 3


def test_a_trial_that_was_killed_before_its_values_were_refused_fails_when_the_sweep_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each call ended with the refusal, and none went on."""
    Path("space.yaml").write_text(f"{SPACE}  algo.learning_starts: {{values: [600, 10]}}\n")
    launched(monkeypatch, near)
    with monkeypatch.context() as killed:
        killed.setattr(SweepStudy, "fail", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        assert swept("total_timesteps=500", trials=8) == 143
    assert "refused" in capsys.readouterr().out
    assert swept("total_timesteps=500", trials=8) == 0
    out = capsys.readouterr().out.splitlines()
    assert "refused: algo.learning_starts: got 600, allowed less than total_timesteps=500" in out[0]


def test_a_space_whose_values_are_all_refused_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("space.yaml").write_text("parameters:\n  algo.epochs: {low: 2, high: 4}\n")
    launched(monkeypatch, near)
    with pytest.raises(ConfigError, match=r"algo.epochs: got 2, allowed nothing with algo=sac"):
        swept()


@pytest.mark.parametrize(
    "each", ["{low: 0.001, high: 0.01}", "{values: [0.0003, 0.001]}"]
)  # the second has the default
def test_a_parameter_that_no_trial_would_read_is_refused(monkeypatch: pytest.MonkeyPatch, each: str) -> None:
    """Each trial left it out: all of them were the same run."""
    launcher = launched(monkeypatch, near)
    alone = f"{SPACE}  algo.alpha_lr: {each}\n"
    Path("space.yaml").write_text(alone)
    with pytest.raises(ConfigError, match=r"algo.alpha_lr: got 0.001, allowed nothing with algo.auto_alpha=false"):
        swept("algo.auto_alpha=false")
    assert not launcher.started
    Path("space.yaml").write_text(f"{alone}  algo.auto_alpha: {{values: [false, true]}}\n")
    assert swept(trials=1, seeds=1) == 0


def test_a_run_without_an_evaluation_has_no_return(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"eval": null}')
    assert str(final_return(tmp_path)) == "nan"
    (tmp_path / "summary.json").write_text('{"eval": {"mean_reward": null}, "rollout": {"ep_rew_mean": -9.0}}')
    assert str(final_return(tmp_path)) == "nan"  # a return of training is no evaluation
