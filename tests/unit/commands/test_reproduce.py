"""`offpolicy reproduce` tells the differences before it starts, and judges the results at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from offpolicy.analysis.reproduction import Circumstances, Outcome
from offpolicy.commands import reproduce as command
from offpolicy.commands.reproduce import reproduce
from offpolicy.config.overrides import load_config
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError

START = "# offpolicy 0.1.0, 2026-11-23T06:29:21+00:00 on vm, commit abc\n"
HERE = {"versions": {"torch": "2.13.0"}, "hardware": {"cpu": "a", "cores": 2, "gpu": None}, "run": {"git_commit": "c"}}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that ended on a machine like this one."""
    path = tmp_path / "first"
    path.mkdir()
    values = load_config(["threads.learner=1", "run_dir=first", "device=cpu"]).to_mapping()
    (path / "config.yaml").write_text(yaml.safe_dump(values) + START)
    (path / "summary.json").write_text(json.dumps({"status": "completed", **HERE}))
    here = Circumstances.of_run(path)
    monkeypatch.setattr(command, "_now", lambda: here)
    monkeypatch.setattr(command, "require_checkpoint", lambda run: None)
    monkeypatch.chdir(tmp_path)
    return path


def judged(monkeypatch: pytest.MonkeyPatch, *found: Outcome) -> None:
    monkeypatch.setattr(command, "outcomes", lambda run, again: iter(found))


def test_the_same_configuration_runs_in_another_directory(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, Outcome("updates", True, "5"))
    started: list[RunConfig] = []
    assert reproduce(run, [], lambda cfg: started.append(cfg) or 0) == 0
    (cfg,) = started
    assert cfg.run_dir is not None
    assert cfg.run_dir.startswith("runs/sac/Pendulum-v1/")
    before = load_config(["threads.learner=1", "device=cpu"]).to_mapping()
    assert cfg.to_mapping() | {"run_dir": None} == before


@pytest.mark.parametrize(
    ("is_equal", "words", "code", "line"),
    [
        (True, [], 0, "reproduced, bit for bit"),
        (False, [], 1, "NOT reproduced, though equal bits were promised"),
        (False, ["algo.gamma=0.99", "seed=1"], 1, "NOT reproduced, though equal bits were promised"),
        (False, ["algo.gamma=0.9", "run_dir=my again"], 0, "other numbers; offpolicy compare first 'my again' says"),
    ],
)
def test_a_broken_promise_alone_fails(
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_equal: bool,
    words: list[str],
    code: int,
    line: str,
) -> None:
    judged(monkeypatch, Outcome("updates", is_equal, "5"))
    assert reproduce(run, words, lambda cfg: 0) == code
    assert line in capsys.readouterr().out


def test_the_differences_are_told_before_the_start(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "summary.json").write_text(json.dumps({"status": "completed", **HERE, "versions": {"torch": "2.12.0"}}))
    judged(monkeypatch)

    def train(cfg: RunConfig) -> int:
        assert "differs     torch was 2.12.0, is 2.13.0" in capsys.readouterr().out
        return 0

    assert reproduce(run, [], train) == 0


def test_a_repetition_that_fails_is_not_compared(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(monkeypatch, Outcome("updates", True, "5"))
    assert reproduce(run, [], lambda cfg: 65) == 65
    assert "ended with 65: nothing is compared" in capsys.readouterr().err


def test_a_directory_that_exists_is_refused_before_the_start(run: Path) -> None:
    with pytest.raises(ConfigError, match="allowed a directory that does not exist"):
        reproduce(run, [f"run_dir={run}"], lambda cfg: pytest.fail("started"))


def test_a_group_is_refused_in_the_users_words(run: Path) -> None:
    with pytest.raises(ConfigError, match="^algo: got 'td3', allowed single keys, .* the groups are those of the run"):
        reproduce(run, ["algo=td3"], lambda cfg: pytest.fail("started"))
