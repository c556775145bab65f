"""Shared blocks: zeroed, shared by descriptor, grown by the process that knows the size; wake events."""

from __future__ import annotations

import errno
import mmap
import os
import threading

import pytest

from offpolicy.processes.shared_memory import SharedBlock, WakeEvent


def test_an_attached_block_shows_what_the_other_view_writes() -> None:
    block = SharedBlock.create("test", 4096)
    other = SharedBlock.attach(os.dup(block.fd))
    assert (other.size, bytes(other.buffer)) == (4096, bytes(4096))
    block.buffer[4095] = 7
    assert other.buffer[4095] == 7


def test_a_cleared_block_is_zero_again_for_its_views() -> None:
    block = SharedBlock.create("test", 8192)
    block.buffer[:2] = block.buffer[8190:] = b"ab"
    block.clear()
    assert bytes(block.buffer) == bytes(8192)
    block.buffer[8191] = 1
    assert SharedBlock.attach(os.dup(block.fd)).buffer[8191] == 1


def test_a_block_that_could_not_be_cleared_can_still_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary of a run that cannot begin again is read from it: beyond the end of a file that is a SIGBUS."""
    block = SharedBlock.create("test", 8192)

    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        block.clear()
    assert os.fstat(block.fd).st_size == 8192
    assert block.buffer[8191] == 0


def test_a_block_has_no_name_and_is_not_inherited() -> None:
    before = os.listdir("/dev/shm")
    block = SharedBlock.create("test", 4096)
    assert os.listdir("/dev/shm") == before
    assert not os.get_inheritable(block.fd)


def test_a_block_that_does_not_fit_is_refused_at_once_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, f"no {size} bytes for {fd}")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="no 4096 bytes for") as caught:
        SharedBlock.create("test", 4096)
    fd = int(str(caught.value).split()[-1])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_block_that_cannot_be_mapped_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Cannot allocate memory"):
        SharedBlock.create("test", 4096)
    assert len(os.listdir("/proc/self/fd")) == before


def test_several_sets_before_a_wait_count_as_one() -> None:
    event = WakeEvent.create()
    for _ in range(3):
        event.set()
    assert event.wait(0.0)
    assert not event.wait(0.0)


def test_a_wait_ends_at_its_deadline_or_when_the_event_is_set() -> None:
    event, woken = WakeEvent.create(), []
    assert not event.wait(0.01)
    thread = threading.Thread(target=lambda: woken.append(event.wait(20.0)), daemon=True)
    thread.start()
    WakeEvent(event.fd).set()
    thread.join(20.0)
    assert woken == [True]


def test_a_block_is_grown_by_every_process_that_knows_its_size_and_keeps_its_content() -> None:
    block = SharedBlock.create("test", 8)
    block.buffer[0] = 7
    first, second = SharedBlock.attach(block.fd, 100), SharedBlock.attach(block.fd, 100)
    first.buffer[99] = 5
    assert (len(second.buffer), second.buffer[0], second.buffer[99], second.buffer[50]) == (100, 7, 5, 0)
    assert len(SharedBlock.attach(block.fd).buffer) == 100


def test_a_block_is_never_shrunk() -> None:
    block = SharedBlock.create("test", 100)
    assert len(SharedBlock.attach(block.fd, 8).buffer) == 100
