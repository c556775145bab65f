"""The command line refuses what is wrong before anything starts, and passes the rest on to the commands."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offpolicy import cli
from offpolicy.commands.options import PolicyChoice
from offpolicy.config.overrides import load_config
from offpolicy.config.schema import specs
from offpolicy.errors import CheckpointError, ConfigError, RunDirBusyError


class Runners:
    """Records what it is asked to do, in place of the runners, and answers so."""

    def __init__(self, answer: int | BaseException = 0) -> None:
        self.asked: list[Any] = []
        self.answer = answer

    @property
    def train_module(self) -> SimpleNamespace:
        return SimpleNamespace(train=self._record, resume=self._record)

    def replace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("offpolicy.commands.train.train_module", lambda: self.train_module)
        monkeypatch.setattr("offpolicy.commands.train.run_server", lambda: contextlib.nullcontext("server"))
        monkeypatch.setattr("offpolicy.commands.evaluate.evaluated", self._record)

    def _record(self, *args: Any, **options: Any) -> int:
        self.asked.append((*args, options) if options else args)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def run_with(monkeypatch: pytest.MonkeyPatch, runners: Runners, *argv: str) -> int:
    runners.replace(monkeypatch)
    return cli.main(argv)


def test_train_hands_the_checked_configuration_over(monkeypatch: pytest.MonkeyPatch) -> None:
    runners = Runners()
    assert run_with(monkeypatch, runners, "train", "algo=td3", "seed=5") == 0
    assert runners.asked == [(load_config(["algo=td3", "seed=5"]), "server", {"ends_process": True})]


def test_a_name_that_no_filesystem_takes_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    long = 256 * "x"
    for words in (["play", str(tmp_path), "--video", f"{long}.gif"], ["resume", long]):
        assert cli.main(words) == 2
        assert "File name too long" in capsys.readouterr().err


def test_resume_finds_the_run_by_its_name_and_hands_the_overrides_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Path("runs/sac/Pendulum-v1/20260101-100000-s1")
    (tmp_path / run).mkdir(parents=True)
    (tmp_path / run / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    for words in ([], ["latest"], ["20260101"], [str(run)]):
        runners = Runners()
        assert run_with(monkeypatch, runners, "resume", *words, "log.every_s=1") == 0
        assert runners.asked == [(run, {"log": {"every_s": 1}}, "server", {"ends_process": True})]


def test_what_no_command_takes_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, problem in (
        (["sweep", "space.yaml", "algo=td3", "--trials", "1", "--tirals", "2"], "unrecognized arguments: --tirals 2\n"),
        (["list", "runs", "others"], "unrecognized arguments: others\n"),
        (["nosuch"], "invalid choice: 'nosuch'"),
    ):
        assert cli.main(argv) == 2
        assert problem in capsys.readouterr().err


def test_eval_hands_its_options_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    runners = Runners(ConfigError("asked"))
    words = ("--episodes", "3", "--device", "cpu", "--random", "--set", "env.kwargs.x=1", "--set", "env.kwargs.y=[2]")
    assert run_with(monkeypatch, runners, "eval", f"mine={tmp_path}", str(tmp_path), *words) == 2
    choice = PolicyChoice(overrides={"env": {"kwargs": {"x": 1, "y": [2]}}})
    runs = {"mine": tmp_path, tmp_path.name: tmp_path}
    assert runners.asked == [(runs, choice, {"episodes": 3, "with_random": True})]


def test_numbers_out_of_their_range_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--seed", "--step", "--episodes"):
        for text in ("-1", "x", "1.5"):
            assert cli.main(["eval", "x", option, text]) == 2
            assert f"argument {option}: got {text}, allowed a whole number in [" in capsys.readouterr().err


def test_two_runs_under_one_label_and_what_is_no_run_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for command in ("resume", "eval"):
        assert cli.main([command, str(tmp_path)]) == 2
        assert f"run: got '{tmp_path}'" in capsys.readouterr().err
    (tmp_path / "config.yaml").touch()
    assert cli.main(["eval", f"a={tmp_path}", f"a={tmp_path}"]) == 2
    assert "run: the label 'a' is given twice" in capsys.readouterr().err
    assert cli.main(["eval", f"random={tmp_path}", "--random"]) == 2
    assert "the label 'random' is that of the random actions" in capsys.readouterr().err


@pytest.mark.promise("exit-codes")
def test_the_exit_code_is_that_of_the_run_or_of_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[tuple[int | BaseException, int]] = [
        (0, 0), (143, 143), (ConfigError("device: no CUDA here"), 2), (CheckpointError("none is valid"), 66),
        (RunDirBusyError("held by pid 7"), 73), (KeyboardInterrupt(), 130),
    ]  # fmt: skip
    for answer, code in answers:
        assert run_with(monkeypatch, Runners(answer), "train") == code
        assert str(answer) in capsys.readouterr().err or isinstance(answer, int)


@pytest.mark.alone
def test_a_wrong_configuration_is_refused_within_a_second_and_a_half(run_cli: Any) -> None:
    walls: list[float] = []
    for _ in range(3):  # the fastest: others use the machine too
        start = time.monotonic()
        assert run_cli(["train", "algo=sca"]).returncode == 2
        walls.append(time.monotonic() - start)
    assert min(walls) < 1.5


@pytest.mark.promise("console")
def test_help_explains_every_command_in_a_line_and_train_help_every_key(run_cli: Any) -> None:
    text = run_cli(["--help"]).stdout
    commands = ("train", "resume", "list", "eval", "play", "record", "export", "prune", "explain", "trace", "compare")
    assert [
        name
        for name in (*commands, "tensorboard", "sweep", "reproduce", "doctor", "help")
        if not re.search(rf"\n    {name}\s+\w", text)
    ] == []
    assert run_cli([]).stdout == text
    text = "\n" + run_cli(["help", "all"]).stdout
    assert [key for key in specs() if f"\n  {key}=" not in text] == []
    assert "algo.gamma=0.99" in text
    assert "a number in [0.0, 1.0]" in text


@pytest.mark.alone
def test_help_comes_at_once(run_cli: Any) -> None:
    costs: list[float] = []
    for _ in range(3):  # seconds of a core, the least: others use the machine too
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run_cli(["--help"])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(costs) < 0.3


@pytest.mark.parametrize("command", ["train --help all", "list"])
def test_an_output_that_is_not_read_has_a_line_or_an_exit_code(command: str, tmp_path: Path) -> None:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "config.yaml").touch()
    own = {"PY": sys.executable, "PYTHONUNBUFFERED": "", "PYTHONPATH": str(Path(__file__).parents[2])}
    for sink, code, text in (("> /dev/full", 74, "offpolicy: No space left on device\n"), ("| exit 0", 141, "")):
        script = f'set -o pipefail; (sleep 0.2; "$PY" -m offpolicy {command}) {sink}'
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, check=False, env={**os.environ, **own}, cwd=tmp_path
        )
        assert (done.returncode, done.stderr) == (code, text)
