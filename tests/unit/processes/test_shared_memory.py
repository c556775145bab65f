"""Shared blocks: zeroed, shared by descriptor, grown by whoever knows the size."""

from __future__ import annotations

from offpolicy.processes.shared_memory import SharedBlock


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
