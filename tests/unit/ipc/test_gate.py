"""The handshake: steps are granted, snapshots are taken between steps, stop is honoured."""

from __future__ import annotations

import threading

import pytest

from offpolicy.ipc.control import CollectorWord, ControlPage, HostWord, RankWord, Stop
from offpolicy.ipc.gate import CollectorGate, LearnerGate, Turn, share
from offpolicy.ipc.shared import Doorbell, SharedBlock


def new_page(num_ranks: int = 1, num_collectors: int = 1) -> ControlPage:
    buffer = memoryview(bytearray(ControlPage.nbytes(num_ranks, num_collectors)))
    return ControlPage(buffer, num_ranks, num_collectors)


@pytest.fixture
def gates() -> tuple[ControlPage, CollectorGate, LearnerGate]:
    control = new_page()
    collector_bell, learner_bell = Doorbell.create(), Doorbell.create()
    return (
        control,
        CollectorGate(control, 0, collector_bell, [learner_bell]),
        LearnerGate(control, 0, learner_bell, [collector_bell]),
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
    control.host.set(HostWord.STOP, Stop.FINISH)
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

    control.leader.bump(RankWord.SNAPSHOT_REQUEST)
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
    control.host.set(HostWord.STOP, Stop.FINISH)
    control.leader.bump(RankWord.SNAPSHOT_REQUEST)
    assert collector.wait_turn(1) is Turn.SNAPSHOT
    collector.snapshot_taken()
    learner.release_snapshot()
    control.host.set(HostWord.STOP, Stop.LEAVE)
    assert collector.wait_turn(1) is Turn.STOP


def test_a_snapshot_is_not_waited_for_from_a_collector_that_is_gone(gates: Gates) -> None:
    control, _, learner = gates
    control.collectors[0].set(CollectorWord.IS_GONE, 1)
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


def test_every_process_has_words_of_its_own() -> None:
    control = new_page(num_ranks=2, num_collectors=3)
    sections = [control.host, *control.ranks, *control.collectors]
    for number, words in enumerate(sections):
        for word in range(8):
            words.set(RankWord(word), 100 * number + word)
    assert [words.get(RankWord.PROGRESS) for words in sections] == [0, 100, 200, 300, 400, 500]
    assert [words.get(RankWord.SNAPSHOT_RELEASE) for words in sections] == [7, 107, 207, 307, 407, 507]


@pytest.mark.parametrize(("env_steps", "num_collectors", "each"), [(10, 1, 10), (10, 3, 4), (9, 3, 3), (1, 4, 1)])
def test_each_collector_does_an_equal_share(env_steps: int, num_collectors: int, each: int) -> None:
    assert share(env_steps, num_collectors) == each


def test_the_learner_waits_until_every_collector_has_done_its_share() -> None:
    control, bell = new_page(num_collectors=2), Doorbell.create()
    learner = LearnerGate(control, 0, bell, [])
    control.collectors[0].set(CollectorWord.ENV_STEPS, 9)  # more than its share, but the other one has done nothing

    def second_collector() -> None:
        control.collectors[1].set(CollectorWord.ENV_STEPS, 3)
        bell.ring()

    timer = threading.Timer(0.1, second_collector)
    timer.start()
    learner.wait_for(6)
    assert learner.env_steps == 12
    timer.join()


def test_only_the_leader_grants() -> None:
    control = new_page(num_ranks=2, num_collectors=2)
    LearnerGate(control, 1, Doorbell.create(), []).grant(10)
    assert control.leader.get(RankWord.GRANTED) == 0
    LearnerGate(control, 0, Doorbell.create(), [], num_collectors=4).grant(10)  # two more on another host
    assert control.leader.get(RankWord.GRANTED) == 3


def test_a_snapshot_is_complete_when_every_collector_has_taken_it() -> None:
    control, bell = new_page(num_collectors=2), Doorbell.create()
    learner = LearnerGate(control, 0, bell, [])
    control.collectors[0].set(CollectorWord.SNAPSHOT_DONE, 1)

    def second_collector() -> None:
        control.collectors[1].set(CollectorWord.SNAPSHOT_DONE, 1)
        bell.ring()

    timer = threading.Timer(0.1, second_collector)
    timer.start()
    assert learner.request_snapshot()
    timer.join()


def test_a_thread_beside_the_learner_does_not_make_it_look_idle() -> None:
    control, bell = new_page(), Doorbell.create()
    gate = LearnerGate(control, 0, bell, [], is_main=False)
    seen: list[int] = []

    def collector() -> None:
        seen.append(control.leader.get(RankWord.IS_WAITING))
        control.collectors[0].set(CollectorWord.ENV_STEPS, 1)
        bell.ring()

    timer = threading.Timer(0.1, collector)
    timer.start()
    gate.wait_for(1)
    timer.join()
    assert seen == [0]


def test_a_snapshot_waits_for_the_living_although_one_collector_is_gone() -> None:
    control, bell = new_page(num_collectors=2), Doorbell.create()
    learner = LearnerGate(control, 0, bell, [])
    control.collectors[0].set(CollectorWord.IS_GONE, 1)
    answered: list[bool] = []
    thread = threading.Thread(target=lambda: answered.append(learner.request_snapshot()))
    thread.start()
    thread.join(0.2)
    assert answered == []  # the other one is still in its step: its ring must not be read yet
    control.collectors[1].set(CollectorWord.SNAPSHOT_DONE, 1)
    bell.ring()
    thread.join(2.0)
    assert answered == [False]
