"""Publication: the newest complete payload, never a mixture; a request is a copy of the newest weights."""

from __future__ import annotations

import numpy as np
import pytest

from offpolicy.processes.mailbox import EvaluationRequest, EvaluationRequests, Mailbox


def make_mailbox(payload_nbytes: int) -> Mailbox:
    return Mailbox(memoryview(bytearray(Mailbox.nbytes(payload_nbytes))), payload_nbytes)


def test_the_newest_payload_is_read_with_its_version() -> None:
    mailbox, out = make_mailbox(32), np.full(4, 7.0)
    assert (mailbox.read(out), out.tolist()) == (0, [7.0] * 4)
    for version in range(1, 6):
        assert mailbox.publish(np.full(4, float(version))) == version
    assert mailbox.read(out) == 5
    assert out.tolist() == [5.0] * 4


@pytest.mark.promise("no-torn-row")
def test_a_slot_that_is_overwritten_while_it_is_read_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer has come back to the slot of version 1, which is being read, and died in it before it was done."""
    mailbox, out, copy, copies = make_mailbox(32), np.zeros(4), np.copyto, list[int]()
    mailbox.publish(np.full(4, 1.0))

    def copy_late(target: np.ndarray, source: np.ndarray) -> None:
        copies.append(mailbox.version)
        if copies == [1]:
            for version in (2, 3):
                mailbox.publish(np.full(4, float(version)))
            with pytest.raises(ValueError, match="broadcast"):
                mailbox.publish(np.full(5, 4.0))
        copy(target, source)

    monkeypatch.setattr(np, "copyto", copy_late)
    assert mailbox.read(out) == 3
    assert out.tolist() == [3.0] * 4


def both_ends(policy_size: int) -> tuple[EvaluationRequests, EvaluationRequests]:
    buffer = memoryview(bytearray(EvaluationRequests.nbytes(4 * policy_size)))
    return EvaluationRequests(buffer, policy_size), EvaluationRequests(buffer, policy_size)


def test_a_request_holds_the_weights_of_the_moment_it_was_made() -> None:
    writer, reader = both_ends(3)
    flat, out = np.array([1.0, 2.0, 3.0], np.float32), np.zeros(3, np.float32)
    assert reader.read(out) == EvaluationRequest(0, 0, 0)
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
