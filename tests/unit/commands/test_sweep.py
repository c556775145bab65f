"""A sweep fills the cores with runs, ends trials by their evaluations, goes on after a kill, and names the best."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offpolicy import cli
from offpolicy.commands import sweep as module
from offpolicy.commands.sweep import SweepOptions, sweep
from offpolicy.errors import ConfigError, OffPolicyError, RunDirBusyError
from offpolicy.launch.run_lock import RunLock

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


def test_jobs_of_slurm_have_the_cores_of_their_node_and_not_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher, elsewhere = FakeLauncher(near), list[bool]()
    monkeypatch.setattr(module, "preflight", lambda cfg, is_elsewhere: elsewhere.append(is_elsewhere))
    monkeypatch.setattr(module, "check_slurm", lambda: None)
    monkeypatch.setattr(module, "SlurmLauncher", lambda options: launcher)
    swept("threads.learner=200", launcher="slurm", trials=1)
    launched(monkeypatch, near)
    swept("threads.learner=2", launcher="local", trials=1, out=Path("other"))
    assert elsewhere == [True, False]


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


def test_a_finished_sweep_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, near)
    swept()
    again = launched(monkeypatch, near)
    assert swept() == 0
    assert again.started == []


def test_two_sweeps_of_one_directory_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launched(monkeypatch, near)
    (tmp_path / "sweeps/space").mkdir(parents=True)
    lock = RunLock(tmp_path / "sweeps/space")
    with pytest.raises(RunDirBusyError):
        swept()
    lock.release()


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


def test_no_trial_may_be_without_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("space.yaml").write_text(f"{SPACE}  eval.episodes: {{values: [0, 2]}}\n")
    launched(monkeypatch, near)
    with pytest.raises(ConfigError, match=r"eval.episodes: got 0, allowed 1 or more in a sweep"):
        swept()
