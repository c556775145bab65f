"""A request is a copy of the newest weights with their version and env steps."""

from __future__ import annotations

import numpy as np

from offpolicy.processes.evaluation_requests import EvaluationRequest, EvaluationRequests


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
