"""Who holds a run directory, and how long."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpolicy.errors import ConfigError, RunDirBusyError
from offpolicy.launch.run_lock import RunLock, has_same_parent, is_running, is_signed
from offpolicy.runs import LOCK, is_of_earlier_start


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    lock = RunLock(directory)
    try:
        lock.sign()
        yield
    finally:
        lock.release()


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"pid": 1}'])
def test_an_unreadable_lock_is_still_a_lock(tmp_path: Path, content: bytes) -> None:
    with held(tmp_path):
        (tmp_path / ".lock").write_bytes(content)
        with pytest.raises(RunDirBusyError, match="in use by another process"):
            RunLock(tmp_path)


@pytest.mark.parametrize("holder", [None, '{"pid": 1, "host": "elsewhere"}'])
def test_a_file_system_without_locks_is_named_and_left_as_it_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str | None
) -> None:
    """It was called not writable, an empty lock file stayed there, and the descriptor open."""
    if holder is not None:
        (tmp_path / LOCK).write_text(holder)  # of a run on a host where locks work

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ConfigError, match="cannot be locked: No locks available; choose a directory on a file system"):
        RunLock(tmp_path)
    assert os.listdir("/proc/self/fd") == before
    assert [path.read_text() for path in tmp_path.iterdir()] == ([] if holder is None else [holder])


def test_a_lock_on_a_file_that_was_removed_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def removed_meanwhile(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        (tmp_path / ".lock").unlink()
        (tmp_path / ".lock").touch()  # the file of a third claim

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    with pytest.raises(RunDirBusyError, match="in use by another process"):
        RunLock(tmp_path)


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("text")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigError, match="is not writable"):
        RunLock(tmp_path / "run")
    assert (tmp_path / "precious").read_text() == "text"


def test_a_run_is_running_while_the_holder_of_its_lock_lives(tmp_path: Path) -> None:
    """A process with the pid of the holder that began later is another one, and one that is not reaped has ended."""

    def sign(pid: int, host: str = socket.gethostname()) -> None:
        (tmp_path / LOCK).write_text(json.dumps({"pid": pid, "parent": 1, "host": host}))

    assert not is_running(tmp_path)
    for pid, is_alive in ((os.getpid(), True), (2**30, False)):
        sign(pid)
        assert is_running(tmp_path) == is_alive
    sign(os.getpid(), "elsewhere")
    assert is_running(tmp_path) is None
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        sign(child.pid)
        assert is_running(tmp_path) is False
    with held(tmp_path):
        assert is_running(tmp_path)
        holder = json.loads((tmp_path / LOCK).read_text())
        (tmp_path / LOCK).write_text(json.dumps(holder | {"started": holder["started"] - 1}))
        assert is_running(tmp_path) is False


def test_a_run_that_has_ended_is_not_running_while_its_process_goes_on(tmp_path: Path) -> None:
    with held(tmp_path):
        pass
    assert is_running(tmp_path) is False
    assert has_same_parent(tmp_path)  # a launcher's restart still knows its own


def test_a_file_is_of_an_earlier_start_until_the_last_one_has_ended_or_written_it_again(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    summary.write_text("{}")
    assert not is_of_earlier_start(summary)  # no run has begun here
    with held(tmp_path):
        for summary_ns, is_earlier in ((1, True), (2, False), (3, False)):
            os.utime(tmp_path / LOCK, ns=(2, 2))
            os.utime(summary, ns=(summary_ns, summary_ns))
            assert is_of_earlier_start(summary) is is_earlier
    os.utime(summary, ns=(1, 1))
    assert not is_of_earlier_start(summary)


def test_a_lock_that_was_not_signed_leaves_the_directory_as_it_was_found(tmp_path: Path) -> None:
    """`offpolicy prune`, or a start that was refused, made an earlier end of the run pass for its last one."""
    RunLock(tmp_path).release()
    assert list(tmp_path.iterdir()) == []
    for content in ("", "[1]", '{"pid": 1, "appname": "an editor"}', '{"pid": 1073741824, "parent": 1, "host": "a"}'):
        (tmp_path / LOCK).write_text(content)
        os.utime(tmp_path / LOCK, ns=(2, 2))
        assert is_signed(tmp_path) == ("parent" in content)  # else another program's
        RunLock(tmp_path).release()
        assert ((tmp_path / LOCK).read_text(), (tmp_path / LOCK).stat().st_mtime_ns) == (content, 2)
