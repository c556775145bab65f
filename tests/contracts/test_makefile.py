"""Every `key=value` given to make reaches the program unchanged, and nothing else of the command line does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = """#!/usr/bin/env python3
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "environ": dict(os.environ)}))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory where everything is installed already and each program reports how it was called."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/offpolicy").write_text(PROGRAM)
    (tmp_path / ".venv/bin/offpolicy").chmod(0o755)
    for stamp in (".python", ".installed", ".dev", ".plot", ".video", ".export", ".ray"):
        (tmp_path / ".venv" / stamp).touch()
    return tmp_path


def make(checkout: Path, *words: str, **environ: str) -> dict[str, Any]:
    clean = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "--no-print-directory", *words]
    result = subprocess.run(
        command, cwd=checkout, env=clean | environ, capture_output=True, text=True, timeout=30, check=False
    )
    assert result.returncode == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


# As they are typed, and what the program gets.
WORDS = (
    *("algo=td3", "env=halfcheetah", "env.num_envs=8", "env.id=my_module:Hand-v0", "algo.hidden_dims=[64,64]"),
    *("env.kwargs={a: 1, b: [x, y]}", "run_dir=/tmp/two  spaces", "run_dir='quoted'", 'run_dir="a,b"', "a=it's"),
    *("run_dir=$HOME/${oc.env:USER}/$(shell id)/`id`", "run_dir=a;b|c&d<e>f*g?h#i%j\\k!", "run_dir=a=b", "run_dir="),
    *("+env.kwargs.x=1", "++seed=1", "~seed=1", "word=1"),
)
COMMANDS = (
    (["eval", "args=runs/a --episodes 3"], ["eval", "runs/a", "--episodes", "3"]),
    (["resume", "args=runs/a", "total_timesteps=5"], ["resume", "runs/a", "total_timesteps=5"]),
    (
        ["compare", "args=a=runs/x b=runs/y --png 'out file.png'"],
        ["compare", "a=runs/x", "b=runs/y", "--png", "out file.png"],
    ),
    (["tensorboard"], ["tensorboard"]),
    (["train", "PYTHON=python3.12"], ["train"]),  # the choice of Python is no override
)


@pytest.mark.promise("make")
def test_a_word_reaches_the_trainer_unchanged(checkout: Path) -> None:
    for word in WORDS:
        assert make(checkout, "train", word)["argv"] == ["train", word]
    words = ["seed=3", "algo=td3", "env.kwargs.x=1", "total_timesteps=3000"]
    assert sorted(make(checkout, words[0], "train", *words[1:])["argv"]) == sorted(["train", *words])


@pytest.mark.promise("make")
def test_the_other_commands_take_their_options_from_args(checkout: Path) -> None:
    for words, argv in COMMANDS:
        assert make(checkout, *words)["argv"] == argv


@pytest.mark.parametrize("word", ["collect.remote_hosts=2", "runner.ray=local"])
def test_a_key_of_remote_collectors_installs_ray_first(checkout: Path, word: str) -> None:
    shutil.copy(checkout / ".venv/bin/offpolicy", checkout / ".venv/bin/python")
    (checkout / ".venv/.ray").unlink()
    assert make(checkout, "list")["argv"] == ["list"]
    assert not (checkout / ".venv/.ray").exists()
    command = ["make", "--no-print-directory", "train", word]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=30, check=True)
    installed, ran = [json.loads(line)["argv"] for line in done.stdout.splitlines()]
    assert (installed[-2:], ran) == (["-e", ".[ray]"], ["train", word])
    assert make(checkout, "train", word)["argv"] == ["train", word]


def test_the_words_do_not_become_environment_variables(checkout: Path) -> None:
    report = make(checkout, "train", "env=ant", "device=cpu", "seed=3", "run_dir=x", "algo=sac")
    assert {"env", "device", "seed", "run_dir", "algo"} & report["environ"].keys() == set()
    assert [name for name, value in report["environ"].items() if "device=cpu" in value] == []


def test_the_environment_does_not_become_overrides(checkout: Path) -> None:
    report = make(checkout, "train", device="cuda", seed="9", env="ant", run="x")
    assert report["argv"] == ["train"]
    assert report["environ"]["device"] == "cuda"


def test_chaos_takes_its_options_from_args(checkout: Path) -> None:
    shutil.copy(checkout / ".venv/bin/offpolicy", checkout / ".venv/bin/python")
    expected = ["-m", "tests.chaos", "--minutes", "2", "--seed", "3"]
    assert make(checkout, "chaos", "args=--minutes 2 --seed 3")["argv"] == expected


@pytest.mark.promise("make")
def test_help_lists_every_command(checkout: Path) -> None:
    text = subprocess.run(["make"], cwd=checkout, capture_output=True, text=True, timeout=30, check=True).stdout
    rules = (checkout / "Makefile").read_text().replace("$(COMMANDS)", "train").replace("$(BENCHES)", "bench")
    phony = next(line for line in rules.splitlines() if line.startswith(".PHONY:"))
    words = {word for line in text.splitlines() if line.startswith("  make ") for word in line.split()}
    assert set(phony.split()[1:]) - words == set()
    assert {"eval", "compare", "tensorboard"} <= set(text.split())
