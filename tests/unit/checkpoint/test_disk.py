"""The real disk refuses what would rewrite or follow, and only excuses filesystems without fsync for directories."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from offpolicy.checkpoint.disk import Disk


def test_a_file_is_its_blocks_one_after_the_other(tmp_path: Path) -> None:
    Disk().write(tmp_path / "file", [b"ab", memoryview(b"cd")])
    assert (tmp_path / "file").read_bytes() == b"abcd"


def test_no_file_is_rewritten_in_place(tmp_path: Path) -> None:
    Disk().write(tmp_path / "file", [b"old"])
    with pytest.raises(FileExistsError):
        Disk().write(tmp_path / "file", [b"new"])
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_link_is_removed_but_never_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    Disk().remove(tmp_path / "link")
    assert os.listdir(tmp_path) == ["kept"]


def test_a_directory_is_removed_with_its_content(tmp_path: Path) -> None:
    Disk().mkdir(tmp_path / "full")
    Disk().write(tmp_path / "full" / "file", [b"a"])
    Disk().remove(tmp_path / "full")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_filesystem_without_fsync_for_directories_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    Disk().fsync_dir(tmp_path)


def test_any_other_failure_to_fsync_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        Disk().fsync_dir(tmp_path)
