"""The handshake: steps are granted, snapshots are taken between steps, stop is honoured."""

from __future__ import annotations

import threading

import pytest

from offpolicy.ipc.control import PAGE_BYTES, ControlPage, Stop, Word
from offpolicy.ipc.gate import CollectorGate, LearnerGate, Turn
from offpolicy.ipc.shared import Doorbell, SharedBlock


@pytest.fixture
def gates() -> tuple[ControlPage, CollectorGate, LearnerGate]:
    control = ControlPage(memoryview(bytearray(PAGE_BYTES)))
    collector_bell, learner_bell = Doorbell.create(), Doorbell.create()
    return (
        control,
        CollectorGate(control, collector_bell, learner_bell),
        LearnerGate(control, learner_bell, collector_bell),
    )


Gates = tuple[ControlPage, CollectorGate, LearnerGate]


def test_the_collector_steps_up_to_its_grant_and_then_waits(gates: Gates) -> None:
    _, collector, learner = gates
    learner.grant(3)
    assert collector.wait_turn(2) is Turn.STEP
    timer = threading.Timer(0.05, lambda: learner.grant(4))
    timer.start()
    assert collector.wait_turn(3) is Turn.STEP
    timer.join()


def test_the_learner_waits_for_the_transitions_it_needs(gates: Gates) -> None:
    _, collector, learner = gates
    learner.grant(6)
    timer = threading.Timer(0.05, lambda: collector.wait_turn(5))
    timer.start()
    learner.wait_for(5)
    assert learner.env_steps == 5
    timer.join()


def test_a_stop_request_ends_the_learners_wait(gates: Gates) -> None:
    control, _, learner = gates
    control.set(Word.STOP, Stop.FINISH)
    learner.wait_for(1000)
    assert learner.env_steps == 0


def test_a_snapshot_comes_before_the_next_step_and_holds_the_collector(gates: Gates) -> None:
    control, collector, learner = gates
    learner.grant(100)
    turns: list[Turn] = []

    def collect() -> None:
        turns.append(collector.wait_turn(1))
        collector.snapshot_taken()
        turns.append(collector.wait_turn(1))

    control.bump(Word.SNAPSHOT_REQUEST)
    thread = threading.Thread(target=collect)
    thread.start()
    thread.join(0.2)
    assert turns == [Turn.SNAPSHOT]  # held although 99 steps are granted
    learner.release_snapshot()
    thread.join(2.0)
    assert turns == [Turn.SNAPSHOT, Turn.STEP]


def test_a_finishing_collector_still_serves_the_last_snapshot_and_leaves_when_told(gates: Gates) -> None:
    control, collector, learner = gates
    learner.grant(100)
    control.set(Word.STOP, Stop.FINISH)
    control.bump(Word.SNAPSHOT_REQUEST)
    assert collector.wait_turn(1) is Turn.SNAPSHOT
    collector.snapshot_taken()
    learner.release_snapshot()
    control.set(Word.STOP, Stop.LEAVE)
    assert collector.wait_turn(1) is Turn.STOP


def test_a_snapshot_is_not_waited_for_from_a_collector_that_is_gone(gates: Gates) -> None:
    control, _, learner = gates
    control.set(Word.COLLECTOR_IS_GONE, 1)
    assert not learner.request_snapshot()


def test_rings_are_kept_while_nobody_waits_and_a_wait_has_a_deadline() -> None:
    bell = Doorbell.create()
    bell.ring()
    bell.ring()
    assert bell.wait(0.0)
    assert not bell.wait(0.01)


def test_shared_memory_is_seen_through_the_descriptor_and_has_no_name() -> None:
    block = SharedBlock.create("test", 4096)
    block.buffer[5] = 42
    assert SharedBlock.attach(block.fd).buffer[5] == 42
