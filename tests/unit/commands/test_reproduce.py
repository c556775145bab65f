"""`offpolicy reproduce` tells the differences before it starts, and judges the results at the end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from offpolicy.analysis.reproduction import Circumstances, Outcome, require_checkpoint
from offpolicy.commands import reproduce as command
from offpolicy.commands.reproduce import reproduce
from offpolicy.config.overrides import load_config
from offpolicy.config.schema import RunConfig
from offpolicy.errors import CheckpointError, ConfigError

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


def test_a_run_without_a_checkpoint_is_refused_before_the_start(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "require_checkpoint", require_checkpoint)
    with pytest.raises(CheckpointError, match="first/checkpoints holds no usable checkpoint, so there are no param"):
        reproduce(run, [], lambda cfg: pytest.fail("started"))


def test_a_directory_that_exists_is_refused_before_the_start(run: Path) -> None:
    with pytest.raises(ConfigError, match="allowed a directory that does not exist"):
        reproduce(run, [f"run_dir={run}"], lambda cfg: pytest.fail("started"))


def test_a_group_is_refused_in_the_users_words(run: Path) -> None:
    with pytest.raises(ConfigError, match="^algo: got 'td3', allowed single keys, .* the groups are those of the run"):
        reproduce(run, ["algo=td3"], lambda cfg: pytest.fail("started"))


@pytest.mark.parametrize(
    "name", ["lr=0.1", "a,b", "copy (1)", "1e-3", "12", "true", "null", "1_000", "x y", "w'ö\"{z}"]
)
def test_a_run_of_any_name_is_reproduced(run: Path, name: str) -> None:
    """The user never wrote `config=`: its quotes are ours."""
    run.rename(run.with_name(name))
    assert command.plan_reproduction(Path(name), ["algo.gamma=0.9"]).cfg.algo.gamma == 0.9


class NewestOf:
    """The checkpoints of a run that has one."""

    def __init__(self, run: Path) -> None:
        self.path = run / "checkpoints/step-000000000007"

    def newest_valid(self, *, reads_rows: bool) -> NewestOf:
        return self


def make_inputs(where: Path) -> dict[str, tuple[str, object, Path]]:
    """By case: the key of a run that reads it, its value, and the file that counts."""
    (where / "mine_to_edit.py").write_text("import gymnasium\nclass Wrapper(gymnasium.Wrapper): ...\n")
    (where / "demos.npz").touch()
    (where / "minari/data").mkdir(parents=True)
    (where / "minari/data/main_data.hdf5").touch()
    source = where / "source"
    manifest = source / "checkpoints/step-000000000007/MANIFEST.json"
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    return {
        "wrapper": ("env.wrappers", ["mine_to_edit:Wrapper"], where / "mine_to_edit.py"),
        "demos": ("replay.demos", str(where / "demos.npz"), where / "demos.npz"),
        "minari": ("replay.demos", str(where / "minari"), where / "minari/data/main_data.hdf5"),
        "init_from": ("init_from", str(source), manifest),
        "teacher": ("teacher", str(source), manifest),
    }


@pytest.mark.parametrize("case", ["wrapper", "demos", "minari", "init_from", "teacher"])
@pytest.mark.parametrize("is_newer", [True, False])
def test_a_file_that_the_run_read_and_that_was_written_since_takes_the_promise_away(
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    case: str,
    is_newer: bool,
) -> None:
    judged(monkeypatch, Outcome("updates", False, "5"))
    summary = {"status": "completed", **HERE, "run": {"git_commit": "c", "started": "2026-11-23T06:29:21+00:00"}}
    (run / "summary.json").write_text(json.dumps(summary))
    key, value, file = make_inputs(tmp_path)[case]
    monkeypatch.setattr(command, "run_store", NewestOf)
    written_s = 1_795_415_361 + (9 if is_newer else -9)
    os.utime(file, (written_s, written_s))
    values = yaml.safe_load((run / "config.yaml").read_text())
    section, _, name = key.rpartition(".")
    (values[section] if section else values)[name] = value
    if case == "teacher":
        values["algo"] |= {"name": "hora", "stage": "adapt"}
        values["runner"]["name"] = "appo"
    (run / "config.yaml").write_text(yaml.safe_dump(values) + START)
    reproduce(run, [], lambda cfg: 0)
    said = f"not bitwise {key}: {file} was written after the run had begun" in capsys.readouterr().out
    assert said == is_newer


@pytest.mark.parametrize(("beside", "code"), [("true", 0), ("false", 1)])
def test_a_run_that_an_evaluation_beside_training_may_stop_promises_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch, beside: str, code: int
) -> None:
    judged(monkeypatch, Outcome("updates", False, "5"))
    values = load_config([
        "threads.learner=1", "device=cpu", f"eval.beside={beside}", "eval.every=500", "stop.reward=-9"
    ]).to_mapping()  # fmt: skip
    (run / "config.yaml").write_text(yaml.safe_dump(values) + START)
    assert reproduce(run, [], lambda cfg: 0) == code
