"""The command and the commit of a run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from offpolicy.logger.provenance import command_line, git_commit


def test_a_command_can_be_typed_again() -> None:
    assert command_line(["/usr/bin/offpolicy", "train", "run_dir=a b"]) == "offpolicy train 'run_dir=a b'"


def test_a_commit_says_whether_files_were_changed(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "x"]):
        (tmp_path / "file").write_text("one")
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    commit = git_commit(tmp_path)
    assert commit is not None
    assert len(commit) == 40
    (tmp_path / "file").write_text("two")
    assert git_commit(tmp_path) == f"{commit}-dirty"
