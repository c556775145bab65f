"""A sweep checks its space, prunes, goes on after a kill, outlives a failed trial, and names the best."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest

from offpolicy import cli
from offpolicy.commands import sweep as module
from offpolicy.commands.sweep import read_space
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.runs import TRIAL
from offpolicy.types import EvalResult
from tests.unit.commands.conftest import Typed

SPACE = "parameters:\n  algo.gamma: {low: 0.9, high: 0.999}\n"
Returns = Callable[[float, int], list[float]]  # of gamma and seed; a run without returns fails


class Runs:
    """Runs that take no time, in place of `train_run`."""

    def __init__(self, returns: Returns) -> None:
        self.returns, self.started, self.stopped = returns, list[RunConfig](), list[Path]()

    def train_run(self, cfg: RunConfig, callbacks: Sequence[Any]) -> SimpleNamespace:
        self.started.append(cfg)
        run = Path(cfg.run_dir or "")
        run.mkdir(parents=True, exist_ok=True)
        for env_steps, mean in enumerate(returns := self.returns(cfg.algo.gamma, cfg.seed)):
            result = EvalResult(env_steps, mean, 0.0, 1.0, 1)
            with (run / "evaluations.jsonl").open("a") as file:
                file.write(json.dumps(result._asdict()) + "\n")
            for callback in callbacks:
                callback.on_evaluation(result)
            if run in self.stopped:
                return SimpleNamespace(code=143, path=run, failure=None)
        (run / "summary.json").write_text(json.dumps({"eval": {"mean_reward": returns[-1]} if returns else None}))
        failure = None if returns else SimpleNamespace(cause="NumericsError: said why")
        return SimpleNamespace(code=65 if failure else 0, path=run, failure=failure)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Returns], Runs]]:
    """Replaces the runs; the next SIGTERM stops the run that was started last."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(TRIAL, "1")  # the command sets it, for its process
    (tmp_path / "space.yaml").write_text(SPACE)
    before = signal.getsignal(signal.SIGTERM)

    def started(returns: Returns) -> Runs:
        runs = Runs(returns)
        monkeypatch.setattr(module, "train_module", lambda: runs)
        signal.signal(signal.SIGTERM, lambda *_: runs.stopped.append(Path(runs.started[-1].run_dir or "")))
        return runs

    yield started
    signal.signal(signal.SIGTERM, before)


def swept(*words: str) -> int:
    return cli.main(["sweep", "space.yaml", "--trials", "3", *words])


def near(gamma: float, seed: int) -> list[float]:
    """The nearer gamma is to 0.95, the better."""
    return [-1000.0, -1000.0 * abs(gamma - 0.95) - seed]


Start = Callable[[Returns], Runs]


def test_the_default_comes_first_each_trial_has_all_seeds_and_the_best_is_a_command(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = start(near)
    assert swept("algo=sac", "total_timesteps=5000", "--trials", "6", "--seeds", "3", "--no-prune") == 0
    gammas = [cfg.algo.gamma for cfg in runs.started]
    assert [cfg.seed for cfg in runs.started] == [1, 2, 3] * 6
    assert (gammas[:3], len(set(gammas))) == ([0.99] * 3, 6)
    assert {cfg.total_timesteps for cfg in runs.started} == {5000}
    best = min(gammas, key=lambda gamma: abs(gamma - 0.95))
    command = f"offpolicy train algo=sac total_timesteps=5000 algo.gamma={best}"
    assert capsys.readouterr().out.splitlines()[-1] == command


@pytest.mark.parametrize(("option", "count"), [("--seeds=2", 1), ("--no-prune", 0)])
def test_a_trial_that_is_worse_than_the_others_is_stopped(
    start: Start, capsys: pytest.CaptureFixture[str], option: str, count: int
) -> None:
    runs = start(lambda gamma, seed: [-1.0] * 3 if gamma == 0.99 or len(runs.started) < 9 else [-999.0] * 3)
    assert swept(option, "--trials", "5") == 0
    assert len(runs.stopped) == count
    assert ("trial 4: pruned" in capsys.readouterr().out) == bool(count)


def test_a_failure_of_the_first_trial_alone_stops_the_sweep(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    runs = start(lambda gamma, seed: [])
    assert swept("--out", "first") == 65
    assert "said why" in capsys.readouterr().err
    assert len(runs.started) == 1
    later = start(lambda gamma, seed: [] if len(later.started) == 2 else [-5.0])
    assert swept() == 0
    assert "trial 1: failed: NumericsError: said why" in capsys.readouterr().out
    assert len(later.started) == 3


def test_what_a_stopped_or_killed_process_has_begun_goes_on(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    def stop_the_second(gamma: float, seed: int) -> list[float]:
        if len(runs.started) == 2:
            signal.raise_signal(signal.SIGTERM)
        return near(gamma, seed)

    runs = start(stop_the_second)
    assert swept() == 143
    again = start(near)
    assert swept() == 0
    assert "trial 1: goes on" in capsys.readouterr().out
    assert again.started[0] == runs.started[1]
    assert len(again.started) == 2


def test_a_finished_sweep_starts_nothing_and_refuses_another_command(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    start(near)
    swept()
    again = start(near)
    assert swept() == 0
    assert again.started == []
    assert swept("algo=td3") == 2
    assert "--out: sweeps/space holds a sweep of another space or command" in capsys.readouterr().err


def test_bad_input_exits_2_before_any_run(start: Start, refused: Typed) -> None:
    runs = start(near)
    for words, problem in (
        (["seed=3"], "seed: not allowed: the sweep sets it"),
        (["algo.gamma=0.9"], "algo.gamma: not allowed: the sweep sets it"),
        (["algo.tau=3"], "algo.tau: got 3, allowed a number"),
        (["--trials", "0"], "--trials"),
        (["--out", "space.yaml/x"], "--out: space.yaml/x cannot be used: [Errno 20] Not a directory"),
    ):
        assert problem in refused("sweep", "space.yaml", *words)
    assert runs.started == []


def test_ranges_and_values_are_read(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(
        "parameters:\n  algo.actor_lr: {low: 1e-4, high: 0.01, log: true}\n  algo.policy_delay: {low: 1, high: 4}\n"
        "  algo.hidden_dims: {values: [[64, 64], [256, 256]]}\n  env.kwargs.g: {low: 5, high: 10.0}\n"
    )
    kinds = optuna.distributions
    assert read_space(file) == {
        "algo.actor_lr": kinds.FloatDistribution(1e-4, 0.01, log=True),
        "algo.policy_delay": kinds.IntDistribution(1, 4),
        "algo.hidden_dims": kinds.CategoricalDistribution(["[64,64]", "[256,256]"]),
        "env.kwargs.g": kinds.FloatDistribution(5.0, 10.0),
    }


def test_a_bad_space_names_the_key_and_what_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    spaces = [
        ("{}", "allowed parameters: keys, each with {low"),
        ("", "got nothing, allowed a mapping"),
        ("parameters: {seed: {low: 1, high: 2}}", "parameters.seed: not allowed: the sweep sets it"),
        ("parameters: {algo.gama: {low: 0, high: 1}}", "algo.gama: unknown key; did you mean algo.gamma?"),
        ("parameters: {algo.gamma: [0.9, 0.99]}", "algo.gamma: got [0.9, 0.99], allowed {low"),
        ("parameters: {algo.gamma: {low: 0.9}}", "algo.gamma: got {'low': 0.9}, allowed"),
        ("parameters: {algo.gamma: {low: 0.9, high: 0.8}}", "algo.gamma: got {'low': 0.9, 'high': 0.8}, allowed"),
        ("parameters: {algo.gamma: {low: 0.9, high: 1.5}}", "algo.gamma: got 1.5, allowed a number in [0.0, 1.0]"),
        ("parameters: {algo.gamma: {low: 0, high: 1, log: true}}", "algo.gamma: got {'low': 0, 'high': 1, 'log'"),
        ("parameters: {algo.gamma: {values: [0.9, 0.99, 0.9]}}", "two or more values are needed, each once"),
        ("parameters: {algo.utd: {low: 0.5, high: 1.2, step: 0.5}}", "algo.utd: got {'low': 0.5, 'high': 1.2"),
    ]  # fmt: skip
    for content, problem in spaces:
        file.write_text(content)
        with pytest.raises(ConfigError) as caught:
            read_space(file)
        assert any(each.startswith(str(file)) and problem in each for each in caught.value.problems), problem
