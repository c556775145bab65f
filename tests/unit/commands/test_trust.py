"""Code that a run's directory names is announced before it is imported; some of it needs `--trust`."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from offpolicy.commands.trust import check_trust, why_not_trusted
from offpolicy.config.overrides import config_file
from offpolicy.errors import ConfigError
from tests.unit.commands.conftest import Typed

EVIL = "import pathlib\npathlib.Path(__file__).with_suffix('.executed').touch()\nraise RuntimeError('ran')\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that names `evilmod`; the current directory is beside it."""
    here = tmp_path / "here"
    (tmp_path / "run").mkdir()
    here.mkdir()
    (tmp_path / "run" / "config.yaml").write_text("env:\n  id: evilmod:X-v0\ncallbacks: [evilmod.deep:f]\n")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path / "run"


def test_what_would_be_imported_is_printed_and_nothing_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("evilmod.py").write_text(EVIL)
    check_trust(run, is_trusted=False)
    err = capsys.readouterr().err.splitlines()
    assert err[0].endswith(f"config.yaml: env.id imports evilmod, found in {Path('evilmod.py').resolve()}")
    assert "callbacks imports evilmod.deep, found in" in err[1]
    assert not Path("evilmod.executed").exists()


def test_a_key_of_the_command_line_is_the_users_own(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_trust(run, is_trusted=False, overridden=("env.id", "callbacks"))
    assert capsys.readouterr().err == ""


def test_a_module_or_link_inside_the_run_needs_trust(
    run: Path, monkeypatch: pytest.MonkeyPatch, refused: Typed
) -> None:
    monkeypatch.chdir(run)
    (run / "evilmod.py").write_text(EVIL)
    for command, *options in (["resume"], ["eval"], ["play"], ["record", "--out", "demos.npz"]):
        assert "lies inside the run's directory; read it, then add --trust" in refused(command, run, *options)
    assert not (run / "evilmod.executed").exists()
    check_trust(run, is_trusted=True)
    (run / "evilmod.py").rename(run.parent / "elsewhere.py")
    (run / "evilmod.py").symlink_to(run.parent / "elsewhere.py")
    with pytest.raises(ConfigError, match="lies inside the run's directory"):
        check_trust(run, is_trusted=False)


def test_every_file_that_is_executed_and_its_directory_count(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("evilmod").mkdir()
    for name in ("__init__", "deep"):
        Path(f"evilmod/{name}.py").write_text(EVIL)
    check_trust(run, is_trusted=False)
    for theirs in ("evilmod", "__init__.py", "deep.py", "config.yaml"):
        owned_by_another(monkeypatch, theirs)
        with pytest.raises(ConfigError, match="callbacks: evilmod.deep would run .* user 77 made .*" + theirs):
            check_trust(run, is_trusted=False)
        monkeypatch.undo()
        monkeypatch.chdir(run.parent / "here")


def test_a_run_that_a_new_one_takes_its_configuration_from_needs_trust_too(
    run: Path, monkeypatch: pytest.MonkeyPatch, refused: Typed
) -> None:
    for file in ("config.yaml", "copy.yaml"):
        (run / file).write_text("env:\n  id: evilmod:X-v0\n")
    (run / "evilmod.py").write_text(EVIL)
    monkeypatch.setattr(sys, "path", [str(run), *sys.path])
    for command in (["train"], ["sweep", "space.yaml"]):
        for source in (run, run / "config.yaml", run / "copy.yaml"):
            problem = refused(*command, f"config={source}")
            assert "lies inside the run's directory; read it, then add --trust" in problem
    assert not (run / "evilmod.executed").exists()


def test_with_trust_or_another_environment_a_new_run_takes_the_rest_of_a_configuration(run: Path) -> None:
    (run / "config.yaml").write_text("env:\n  id: evilmod:X-v0\n")
    file, own = config_file([f"config={run}", "env.id=Pendulum-v1", "seed=3"])
    assert (file, own) == (run / "config.yaml", ("env.id", "seed"))
    assert config_file(["algo=td3"]) == (None, ())
    check_trust(run / "config.yaml", is_trusted=False, overridden=own)


def owned_by_another(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Files and directories of this name belong to user 77."""
    lstat = Path.lstat

    def changed(path: Path) -> os.stat_result:
        found = list(lstat(path))
        found[stat.ST_UID] = 77 if path.name == name else found[stat.ST_UID]
        return os.stat_result(found)

    monkeypatch.setattr(Path, "lstat", changed)


def test_an_installed_module_needs_no_trust(run: Path) -> None:
    assert why_not_trusted(run / "config.yaml", Path(os.__file__)) is None
