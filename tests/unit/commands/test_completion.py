"""The scripts complete commands, groups with their options, and keys, in the shells that are installed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from offpolicy.cli import _parser
from offpolicy.commands.completion import SHELLS, completion


@pytest.fixture
def script(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The script for the shell that the test names."""
    assert completion(request.param, _parser()) == 0
    file = tmp_path / f"completion.{request.param}"
    file.write_text(capsys.readouterr().out)
    return file


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last of `words`, where no run is; it offers runs that are."""
    typed = " ".join(map(shlex.quote, words))
    text = f"source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _offpolicy; echo ${{COMPREPLY[@]}}"
    where = script.parent
    result = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=30, check=True, cwd=where)
    return set(result.stdout.split())


@pytest.mark.parametrize("script", ["bash"], indirect=True)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("offpolicy", "doc"), {"doctor"}),
        (("offpolicy", "train", "algo", "=", "s"), {"sac"}),
        (("offpolicy", "train", "algo", "="), {"appo", "flashsac", "hora", "sac", "td3"}),
        (("offpolicy", "train", "seed", "=", "3", "algo.gam"), {"algo.gamma="}),
        (("offpolicy", "tune", "resume", "=", "m"), {"must"}),
        (("offpolicy", "reproduce", "latest", "algo.gam"), {"algo.gamma="}),
        (("offpolicy", "explain", "lat"), {"latest"}),
        (("offpolicy", "doctor", "--j"), {"--json"}),
    ],
)
def test_bash_offers_what_fits(script: Path, words: tuple[str, ...], expected: set[str]) -> None:
    assert completed(script, *words) == expected


@pytest.mark.parametrize("script", SHELLS, indirect=True)
def test_each_shell_can_read_its_script(script: Path) -> None:
    shell = script.suffix[1:]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", str(script)], check=True, timeout=30)
