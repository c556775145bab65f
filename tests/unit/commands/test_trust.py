"""Code that a run's directory names is announced before it is imported; some of it needs `--trust`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from offpolicy.cli import main
from offpolicy.commands.trust import check_trust, why_not_trusted
from offpolicy.errors import ConfigError

EVIL = "import pathlib\npathlib.Path(__file__).with_suffix('.executed').touch()\nraise RuntimeError('ran')\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that names `evilmod`; the current directory is beside it."""
    here = tmp_path / "here"
    (tmp_path / "run").mkdir()
    here.mkdir()
    (tmp_path / "run" / "config.yaml").write_text("env:\n  id: evilmod:X-v0\neval:\n  hook: evilmod.deep:f\n")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path / "run"


def test_what_would_be_imported_is_printed_and_nothing_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("evilmod.py").write_text(EVIL)
    check_trust(run, is_trusted=False)
    err = capsys.readouterr().err.splitlines()
    assert err[0].endswith(f"config.yaml: env.id imports evilmod, found in {Path('evilmod.py').resolve()}")
    assert "eval.hook imports evilmod.deep, found in" in err[1]
    assert not Path("evilmod.executed").exists()


def test_a_key_of_the_command_line_is_the_users_own(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_trust(run, is_trusted=False, overridden=("env.id", "eval.hook"))
    assert capsys.readouterr().err == ""


def test_our_own_modules_are_not_announced(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "config.yaml").write_text("env:\n  id: offpolicy.envs.toy:PointMass-v0\n")
    check_trust(run, is_trusted=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["resume", "eval", "play", "record"])
def test_a_module_inside_the_run_needs_trust(
    run: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run)
    (run / "evilmod.py").write_text(EVIL)
    options = ["--out", "demos.npz"] if command == "record" else []
    assert main([command, str(run), *options]) == 2
    assert "lies inside the run's directory; read it, then add --trust" in capsys.readouterr().err
    assert not (run / "evilmod.executed").exists()
    check_trust(run, is_trusted=True)


def test_a_module_of_another_user_in_the_current_directory_needs_trust(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("evilmod").mkdir()
    Path("evilmod/__init__.py").write_text(EVIL)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(ConfigError, match=f"lies in the current directory, and user {me} made"):
        check_trust(run, is_trusted=False)


def test_an_installed_module_needs_no_trust(run: Path) -> None:
    assert why_not_trusted(run, Path(os.__file__)) is None
