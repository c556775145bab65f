"""Publication: the newest complete payload, never a mixture; a request is a copy of the newest weights."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from offpolicy.processes.mailbox import EvaluationRequest, EvaluationRequests, Mailbox


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
    """Returns the number of reads that saw a mixture of two versions, or another version than the returned one."""
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


class Interrupted(Exception):
    """The writer has come so far."""


@pytest.mark.parametrize("site", ["mailbox.cleared", "mailbox.copied"])
def test_a_slot_that_is_overwritten_while_it_is_read_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    """The slot of version 1, which a reader copies, becomes that of version 4, which is not published yet."""
    mailbox, out, copy = make_mailbox(32), np.zeros(4), np.copyto
    mailbox.publish(np.full(4, 1.0))

    def hit(reached: str) -> None:
        if reached == site and mailbox.version == 3:
            raise Interrupted

    def copy_late(target: np.ndarray, source: np.ndarray) -> None:
        monkeypatch.setattr(np, "copyto", copy)
        monkeypatch.setattr("offpolicy.processes.mailbox.fault.hit", hit)
        for version in (2, 3):
            mailbox.publish(np.full(4, float(version)))
        with pytest.raises(Interrupted):
            mailbox.publish(np.full(4, 4.0))
        copy(target, source)

    monkeypatch.setattr(np, "copyto", copy_late)
    assert mailbox.read(out) == 3
    assert out.tolist() == [3.0] * 4


def both_ends(policy_size: int) -> tuple[EvaluationRequests, EvaluationRequests]:
    buffer = memoryview(bytearray(EvaluationRequests.nbytes(4 * policy_size)))
    return EvaluationRequests(buffer, policy_size), EvaluationRequests(buffer, policy_size)


def test_there_is_no_request_before_the_first() -> None:
    _, reader = both_ends(3)
    out = np.full(3, 7.0, np.float32)
    assert reader.newest == 0
    assert reader.read(out) == EvaluationRequest(0, 0, 0)
    assert out.tolist() == [7.0] * 3


def test_a_request_holds_the_weights_of_the_moment_it_was_made() -> None:
    writer, reader = both_ends(3)
    flat, out = np.array([1.0, 2.0, 3.0], np.float32), np.zeros(3, np.float32)
    assert writer.publish(flat, env_steps=2**40, policy_version=5) == 1
    flat[:] = 0.0  # as training does
    assert reader.read(out) == EvaluationRequest(1, 2**40, 5)
    assert out.tolist() == [1.0, 2.0, 3.0]


def test_only_the_newest_request_is_kept_and_numbers_count_the_missed() -> None:
    writer, reader = both_ends(1)
    out = np.zeros(1, np.float32)
    for step in (10, 20, 30, 40):
        writer.publish(np.array([step], np.float32), env_steps=step, policy_version=step + 1)
    assert reader.newest == 4
    assert (reader.read(out), out.tolist()) == (EvaluationRequest(4, 40, 41), [40.0])


def test_a_policy_smaller_than_its_block_fits() -> None:
    buffer = memoryview(bytearray(EvaluationRequests.nbytes(400)))
    EvaluationRequests(buffer, 3).publish(np.arange(3, dtype=np.float32), env_steps=1, policy_version=2)
    out = np.zeros(3, np.float32)
    assert EvaluationRequests(buffer, 3).read(out) == EvaluationRequest(1, 1, 2)
    assert out.tolist() == [0.0, 1.0, 2.0]
