"""`offpolicy reproduce` trains the same configuration again, and fails only where equal bits are promised."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offpolicy.cli import main
from offpolicy.commands import reproduce as module
from offpolicy.config.overrides import load_config
from offpolicy.config.run_files import write_config
from offpolicy.config.schema import RunConfig
from offpolicy.types import SpaceSpec
from tests.unit.commands.conftest import Typed

SPEC = SpaceSpec(3, 1, (-2.0,), (2.0,))
SUMMARY: dict[str, Any] = {
    "status": "completed", "env_steps": 600, "updates": 500, "restarts": 0, "learner_restarts": 0,
    "eval": {"mean_reward": -100.0}, "versions": {"torch": "2.13.0"},
    "hardware": {"cpu": "a", "cores": 2, "gpu": None}, "run": {"git_commit": "abc"},
}  # fmt: skip


def end(cfg: RunConfig, **changes: Any) -> int:
    """Writes what a run with this configuration leaves."""
    path = Path(cfg.run_dir or "")
    path.mkdir(parents=True)
    write_config(path, cfg, SPEC)
    (path / "summary.json").write_text(json.dumps(SUMMARY | changes))
    (path / "episodes.jsonl").write_text(json.dumps({"env_steps": 200, "ep_return": changes.get("updates", 0)}) + "\n")
    return 0


Train = Callable[[RunConfig], int]
Start = Callable[[Train], None]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """`start(train)` trains in place of the runners; `first` is a run that has ended."""
    monkeypatch.chdir(tmp_path)
    end(load_config(["threads.learner=1", "collect.mode=alternate", "run_dir=first", "device=cpu"]))
    return lambda train: monkeypatch.setattr(module, "train_module", lambda: SimpleNamespace(train=train))


def test_the_same_configuration_runs_in_another_directory(start: Start, printed: Typed) -> None:
    started: list[RunConfig] = []
    start(lambda cfg: started.append(cfg) or end(cfg))
    assert "result      reproduced, bit for bit" in printed("reproduce", "first")
    (cfg,) = started
    assert str(cfg.run_dir).startswith("runs/sac/Pendulum-v1/")


def test_a_broken_promise_alone_fails(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    cases: list[tuple[list[str], dict[str, Any], int, str]] = [
        ([], {"updates": 499}, 1, "NOT reproduced, though equal bits are promised"),
        (["run_dir=again", "log.every_s=3"], {"updates": 499}, 1, "differs     training episodes: was 1, sha256"),
        (["algo.gamma=0.9", "run_dir=my again"], {"updates": 499}, 0, "numbers; offpolicy compare first 'my again'"),
        (["algo.gamma=0.9"], {"updates": 499}, 0, "not bitwise algo.gamma: was 0.99, is 0.9"),
        ([], {"updates": 499, "versions": {"torch": "2.14.0"}}, 0, "not bitwise versions.torch: was 2.13.0, is 2.14.0"),
        ([], {"updates": 499, "run": {"git_commit": "def"}}, 0, "not bitwise run.git_commit: was abc, is def"),
        (["collect.mode=overlap"], {"updates": 499}, 0, "not bitwise equal bits need collect.mode=alternate"),
    ]  # fmt: skip
    for words, changes, code, line in cases:
        start(partial(end, **changes))
        assert main(["reproduce", "first", *words]) == code
        assert line in capsys.readouterr().out


def test_a_repetition_that_fails_is_not_compared(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    start(lambda cfg: 65)
    assert main(["reproduce", "first"]) == 65
    assert "result" not in capsys.readouterr().out


def test_what_cannot_be_repeated_is_refused_before_the_start(start: Start, refused: Typed) -> None:
    start(lambda cfg: pytest.fail("started"))
    refused("reproduce", "first", "run_dir=first")
    refused("reproduce", "first", "algo=td3")
    Path("first/summary.json").unlink()
    assert "allowed a run that has ended, in a new directory" in refused("reproduce", "first")
