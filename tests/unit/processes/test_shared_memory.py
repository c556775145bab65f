"""Shared blocks: zeroed, shared by descriptor, grown by the process that knows the size; wake events."""

from __future__ import annotations

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


@pytest.mark.promise("no-orphan")
def test_a_block_has_no_name_and_is_not_inherited() -> None:
    block = SharedBlock.create("test", 4096)
    assert os.readlink(f"/proc/self/fd/{block.fd}") == "/memfd:offpolicy-test (deleted)"
    assert not os.get_inheritable(block.fd)


def test_a_wait_ends_at_its_deadline_or_when_the_event_is_set() -> None:
    event, woken = WakeEvent.create(), []
    assert not event.wait(0.01)
    for _ in range(3):
        event.set()
    assert [event.wait(0.0), event.wait(0.0)] == [True, False]  # several count as one
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
