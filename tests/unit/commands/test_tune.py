"""`offpolicy tune` from its words to its table and its file, with trials of known speeds."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from offpolicy.analysis.search import Row
from offpolicy.analysis.tuning import Measured, TrialFailed
from offpolicy.commands.trial import Trial
from offpolicy.commands.tune import TuneOptions, tune, tuning_table
from offpolicy.config.overrides import load_config
from offpolicy.errors import ConfigError, OffPolicyError

OVERLAP = "collect.mode=overlap"


@pytest.fixture
def options(tmp_path: Path) -> TuneOptions:
    return TuneOptions(minutes=10.0, out=tmp_path / "my tune.txt", keep=())


def measured_as(monkeypatch: pytest.MonkeyPatch, rate_of: dict[str, float], busy: float = 0.0) -> list[list[str]]:
    """Replaces trials: the rate is that of the first override that is listed, else 100; returns the words of each."""
    asked: list[list[str]] = []

    def measure(trial: Trial) -> Measured:
        asked.append(list(trial.words))
        rate = next((rate for word, rate in rate_of.items() if word in trial.words), 100.0)
        return Measured((rate - 1.0, rate, rate + 1.0), busy, threads=1)

    monkeypatch.setattr(Trial, "measure", measure)
    monkeypatch.setattr("offpolicy.commands.tune.preflight", lambda cfg: None)
    return asked


def test_the_fastest_overrides_are_printed_and_written_after_those_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: TuneOptions
) -> None:
    asked = measured_as(monkeypatch, {OVERLAP: 150.0}, busy=0.5)
    assert tune(["algo=td3", "env.num_envs=1"], options) == 0
    assert options.out.read_text() == f"algo=td3\nenv.num_envs=1\n{OVERLAP}\n"
    out = capsys.readouterr().out
    text = " ".join(out.split())
    assert f"offpolicy train algo=td3 env.num_envs=1 {OVERLAP}" in text
    assert f"for `offpolicy train $(cat '{options.out}')`" in text
    assert "not touched env.num_envs: given on the command line" in text
    assert "note collect.mode: overlap: the collector acts with weights that are one update older" in text
    assert "busy other programs used up to 50% of the cores" in text
    assert not any(word.startswith("env.num_envs") and word != "env.num_envs=1" for words in asked for word in words)
    for words in asked:  # a trial learns what the run would learn
        load_config(words)
        assert {word for word in words if word.startswith(("algo", "seed"))} == {"algo=td3", "algo.learning_starts=256"}


def test_a_first_trial_that_fails_is_the_error_of_the_command(
    monkeypatch: pytest.MonkeyPatch, options: TuneOptions
) -> None:
    measured_as(monkeypatch, {})

    def measure(_: Trial) -> Measured:
        raise TrialFailed("learner 0 failed")

    monkeypatch.setattr(Trial, "measure", measure)
    with pytest.raises(OffPolicyError, match="its first trial failed: learner 0 failed"):
        tune([], options)


@pytest.mark.parametrize(
    ("words", "keep", "problem"),
    [
        (["algo.utdd=2"], (), "algo.utdd"),
        (["env.id=NoSuch-v0"], (), "NoSuch"),
        ([], ("algo.utd",), "--keep: got 'algo.utd', allowed collect.mode, "),
    ],
)
def test_what_train_would_refuse_is_refused_before_any_trial(
    monkeypatch: pytest.MonkeyPatch, options: TuneOptions, words: list[str], keep: tuple[str, ...], problem: str
) -> None:
    def measure(_: Trial) -> Measured:
        raise AssertionError("a trial was run")

    monkeypatch.setattr(Trial, "measure", measure)
    with pytest.raises(ConfigError, match=problem):
        tune(words, TuneOptions(1.0, options.out, keep))


def test_the_table_fits_80_columns_and_names_each_trial() -> None:
    start, faster = Measured((98.0, 100.0, 103.0)), Measured((1480.0, 1500.0, 1530.0), busy=0.3)
    rows = [
        Row("(start)", None, start, "start"),
        Row("env.num_envs=2 env.vectorization=async", 1600.0, faster, "faster"),
        Row("env.vectorization=mujoco", 110.0, None, "failed: no MuJoCo model"),
        Row("collect.mode=overlap", 110.0, Measured((90.0, 110.0), is_settled=False), "noise"),
    ]
    console = Console(width=80, file=io.StringIO())
    with console.capture() as capture:
        console.print(tuning_table(rows))
    text = capture.get()
    assert max(map(len, text.splitlines())) <= 80
    words = text.split()
    assert words[words.index("env.num_envs=2") + 1 :][:5] == ["1600", "1500", "1490-1515", "15.00", "faster"]
    assert "env.vectorization=async" in words
    assert "env.vectorization=mujoco" in words
    assert {"(busy)", "MuJoCo", "(still"} <= set(words)
