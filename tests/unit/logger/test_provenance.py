"""The start of a run is recorded: command, commit, date and machine, in config.yaml and summary.json."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
import yaml

from offpolicy import __version__
from offpolicy.logger.provenance import Provenance, git_commit


def git(directory: Path, *words: str) -> str:
    identity = {f"GIT_{role}_{part}": "a@b" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    command = ["git", "-C", str(directory), *words]
    return subprocess.run(command, env=os.environ | identity, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    git(tmp_path, "init")
    (tmp_path / "code.py").touch()
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "-m", "first")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commit_is_that_of_the_working_directory(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert git_commit(checkout) == head
    (checkout / "code.py").write_text("changed")
    assert git_commit(checkout) == f"{head}-dirty"


def test_without_a_checkout_or_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_commit(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert git_commit(tmp_path) is None


def test_the_section_can_be_typed_again(checkout: Path) -> None:
    section = Provenance.of_this_process(1_700_000_000.0, ["train", "env.kwargs={a: 1}"]).section()
    assert section["command"] == "offpolicy train 'env.kwargs={a: 1}'"
    assert (section["directory"], section["host"]) == (str(checkout), socket.gethostname())
    assert section["started"] == "2023-11-14T22:13:20+00:00"
    assert section["git_commit"] == git(checkout, "rev-parse", "HEAD")
    assert len(section["load_before"]) == len(section["load_after"]) == 3


def test_the_index_of_the_checkout_is_not_written(checkout: Path) -> None:
    os.utime(checkout / "code.py", (1e9, 1e9))  # another time stamp: git would refresh its index
    before = (checkout / ".git/index").read_bytes()
    git_commit(checkout)
    assert (checkout / ".git/index").read_bytes() == before


def test_each_start_is_a_comment_of_the_configuration_whatever_was_typed(tmp_path: Path) -> None:
    file, words = (
        tmp_path / "config.yaml",
        ("two\nlines", "a\rb", "a\x85b", "a\u2028b", "a\x07b", "\ud800", "caf\u00e9"),
    )
    file.write_text("seed: 1\n")
    for word in words:
        start = Provenance.of_this_process(0.0, ["resume", word])
        start.note(file)
        start.command.encode()  # it goes into files of other formats too
    assert yaml.safe_load(file.read_text(encoding="ascii")) == {"seed": 1}
    lines = file.read_text().splitlines()
    assert len(lines) == 1 + 2 * len(words)
    assert lines[1].startswith(f"# offpolicy {__version__}, 1970-01-01T00:00:00+00:00 on ")
    assert lines[-1].startswith("# offpolicy resume ")
