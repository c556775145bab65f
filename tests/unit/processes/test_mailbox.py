"""Publication: the newest complete payload, never a mixture."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from offpolicy.processes.mailbox import Mailbox


def make_mailbox(payload_nbytes: int) -> Mailbox:
    return Mailbox(memoryview(bytearray(Mailbox.nbytes(payload_nbytes))), payload_nbytes)


def test_nothing_is_read_before_the_first_publication() -> None:
    out = np.full(4, 7.0)
    assert make_mailbox(32).read(out) == 0
    assert out.tolist() == [7.0] * 4


def test_the_newest_payload_is_read_with_its_version() -> None:
    mailbox, out = make_mailbox(32), np.empty(4)
    for version in range(1, 6):
        assert mailbox.publish(np.full(4, float(version))) == version
    assert mailbox.read(out) == 5
    assert out.tolist() == [5.0] * 4


def test_a_payload_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Mailbox(memoryview(bytearray(100)), 32)


def read_while_publishing(mailbox: Mailbox, size: int, reads: int) -> int:
    """How many of the reads saw a mixture of two versions, or another version than they were told."""
    is_over = threading.Event()

    def publish() -> None:
        version = mailbox.version
        while not is_over.is_set():
            version += 1
            mailbox.publish(np.full(size, version, dtype=np.float64))

    writer = threading.Thread(target=publish)
    writer.start()
    out, torn = np.zeros(size), 0
    for _ in range(reads):
        version = mailbox.read(out)
        torn += bool(version and not (out == version).all())
    is_over.set()
    writer.join()
    return torn


def test_no_read_is_torn_while_a_writer_publishes_flat_out() -> None:
    assert read_while_publishing(make_mailbox(8 * 50_000), 50_000, reads=400) == 0


def test_without_the_second_look_reads_are_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeded bug: the test above would catch a reader that trusts its first look."""

    def read(self: Mailbox, out: np.ndarray) -> int:
        version = self._words[0]
        target = out.view(np.uint8)
        half = len(target) // 2
        slot = self._slots[version % 3]
        np.copyto(target[:half], slot[:half])
        for _ in range(20):  # give the writer its turn in the middle
            threading.Event().wait(0.0005)
        np.copyto(target[half:], slot[half:])
        return version

    monkeypatch.setattr(Mailbox, "read", read)
    assert read_while_publishing(make_mailbox(8 * 50_000), 50_000, reads=20) > 0
