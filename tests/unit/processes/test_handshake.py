"""The handshake: steps are granted, snapshots are taken between steps, stop is honoured."""

from __future__ import annotations

import errno
import threading
from enum import IntEnum

import pytest

from offpolicy.errors import EnvFailure
from offpolicy.processes.control_page import CollectorWord, ControlPage, ControlWords, HostWord, RankWord, Stop
from offpolicy.processes.handshake import CollectorGate, LearnerGate, Turn, steps_per_collector
from offpolicy.processes.shared_memory import SharedBlock, WakeEvent


def new_page(num_ranks: int = 1, num_collectors: int = 1) -> ControlPage:
    buffer = memoryview(bytearray(ControlPage.nbytes(num_ranks, num_collectors)))
    return ControlPage(buffer, num_ranks, num_collectors)


@pytest.fixture
def gates() -> tuple[ControlPage, CollectorGate, LearnerGate]:
    control = new_page()
    collector_wake, learner_wake = WakeEvent.create(), WakeEvent.create()
    return (
        control,
        CollectorGate(control, 0, collector_wake, [learner_wake]),
        LearnerGate(control, 0, learner_wake, [collector_wake]),
    )


Gates = tuple[ControlPage, CollectorGate, LearnerGate]


def turn(collector: CollectorGate, env_steps: int) -> Turn:
    """The turn of a collector whose grants count env steps."""
    collector.announce(env_steps, env_steps)
    return collector.wait_turn(lambda granted: env_steps < granted)


def test_the_collector_steps_up_to_its_grant_and_then_waits(gates: Gates) -> None:
    _, collector, learner = gates
    learner.grant(3)
    assert turn(collector, 2) is Turn.STEP
    timer = threading.Timer(0.05, lambda: learner.grant(4))
    timer.start()
    assert turn(collector, 3) is Turn.STEP
    timer.join()


def test_the_learner_waits_for_the_transitions_it_needs(gates: Gates) -> None:
    _, collector, learner = gates
    learner.grant(6)
    timer = threading.Timer(0.05, lambda: turn(collector, 5))
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
        turns.append(turn(collector, 1))
        collector.snapshot_taken()
        turns.append(turn(collector, 1))

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
    assert turn(collector, 1) is Turn.SNAPSHOT
    collector.snapshot_taken()
    learner.release_snapshot()
    control.host.set(HostWord.STOP, Stop.EXIT)
    assert turn(collector, 1) is Turn.STOP


def test_a_refused_snapshot_counts_as_answered_until_the_next_one_is_on_disk(gates: Gates) -> None:
    control, collector, _ = gates
    control.leader.bump(RankWord.SNAPSHOT_REQUEST)
    for error, reported in ((OSError(errno.ENOSPC, "full"), errno.ENOSPC), (OSError("unknown"), errno.EIO), (None, 0)):
        collector.snapshot_taken(error)
        assert control.collectors[0].get(CollectorWord.SNAPSHOT_DONE) == 1
        assert control.collectors[0].get(CollectorWord.SNAPSHOT_ERRNO) == reported


def test_what_the_disk_has_refused_is_known_before_the_snapshot_counts_as_answered(
    gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, collector, _ = gates
    words, store, seen = control.collectors[0], ControlWords.set, list[tuple[int, int]]()

    def watched(self: ControlWords, word: IntEnum, value: int) -> None:
        store(self, word, value)
        if word in (CollectorWord.SNAPSHOT_DONE, CollectorWord.SNAPSHOT_ERRNO):
            seen.append((words.get(CollectorWord.SNAPSHOT_DONE), words.get(CollectorWord.SNAPSHOT_ERRNO)))

    control.leader.bump(RankWord.SNAPSHOT_REQUEST)
    monkeypatch.setattr(ControlWords, "set", watched)
    collector.snapshot_taken(OSError(errno.ENOSPC, "full"))
    assert seen == [(0, errno.ENOSPC), (1, errno.ENOSPC)]


def test_a_collector_says_while_it_writes_its_snapshot_that_it_does_and_both_ends_are_progress(gates: Gates) -> None:
    control, collector, _ = gates
    control.leader.bump(RankWord.SNAPSHOT_REQUEST)
    seen = [(control.is_saving("collector", 0), control.progress("collector", 0))]
    with pytest.raises(EnvFailure, match="lost"), collector.saving():  # noqa: PT012
        seen.append((control.is_saving("collector", 0), control.progress("collector", 0)))
        raise EnvFailure("lost")
    collector.snapshot_taken()
    seen.append((control.is_saving("collector", 0), control.progress("collector", 0)))
    assert seen == [(False, 0), (True, 1), (False, 2)]
    assert not control.is_saving("learner", 0)


def test_every_step_of_a_collector_is_progress(gates: Gates) -> None:
    control, collector, _ = gates
    progress = []
    for env_steps in (10, 20, 20):  # with nothing handed over: all of it is in one rollout, or is a reset row
        collector.announce(env_steps, 0)
        progress.append(control.progress("collector", 0))
    assert progress == [1, 2, 3]


def test_a_snapshot_is_not_waited_for_from_a_collector_that_is_gone(gates: Gates) -> None:
    control, _, learner = gates
    control.collectors[0].set(CollectorWord.IS_GONE, 1)
    assert not learner.request_snapshot()


def test_rings_are_kept_while_nobody_waits_and_a_wait_has_a_deadline() -> None:
    wake_event = WakeEvent.create()
    wake_event.set()
    wake_event.set()
    assert wake_event.wait(0.0)
    assert not wake_event.wait(0.01)


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
    assert steps_per_collector(env_steps, num_collectors) == each


def test_the_learner_waits_until_every_collector_has_done_its_share() -> None:
    control, wake_event = new_page(num_collectors=2), WakeEvent.create()
    learner = LearnerGate(control, 0, wake_event, [])
    control.collectors[0].set(CollectorWord.ENV_STEPS, 9)  # more than its part, but the other one has done nothing

    def second_collector() -> None:
        control.collectors[1].set(CollectorWord.ENV_STEPS, 3)
        wake_event.set()

    timer = threading.Timer(0.1, second_collector)
    timer.start()
    learner.wait_for(6)
    assert learner.env_steps == 12
    timer.join()


def test_only_the_leader_grants() -> None:
    control = new_page(num_ranks=2, num_collectors=2)
    LearnerGate(control, 1, WakeEvent.create(), []).grant(10)
    assert control.leader.get(RankWord.GRANTED) == 0
    LearnerGate(control, 0, WakeEvent.create(), [], num_collectors=4).grant(10)  # two more on another host
    assert control.leader.get(RankWord.GRANTED) == 3


def test_a_snapshot_is_complete_when_every_collector_has_taken_it() -> None:
    control, wake_event = new_page(num_collectors=2), WakeEvent.create()
    learner = LearnerGate(control, 0, wake_event, [])
    control.collectors[0].set(CollectorWord.SNAPSHOT_DONE, 1)

    def second_collector() -> None:
        control.collectors[1].set(CollectorWord.SNAPSHOT_DONE, 1)
        wake_event.set()

    timer = threading.Timer(0.1, second_collector)
    timer.start()
    assert learner.request_snapshot()
    timer.join()


def test_a_thread_beside_the_learner_does_not_make_it_look_idle() -> None:
    control, wake_event = new_page(), WakeEvent.create()
    gate = LearnerGate(control, 0, wake_event, [], is_main=False)
    seen: list[int] = []

    def collector() -> None:
        seen.append(control.leader.get(RankWord.IS_WAITING))
        control.collectors[0].set(CollectorWord.ENV_STEPS, 1)
        wake_event.set()

    timer = threading.Timer(0.1, collector)
    timer.start()
    gate.wait_for(1)
    timer.join()
    assert seen == [0]


def test_a_thread_beside_the_learner_does_not_make_it_look_busy_while_it_waits() -> None:
    control, wake_event = new_page(), WakeEvent.create()
    control.leader.set(RankWord.IS_WAITING, 1)  # the learner's own thread waits
    looks = iter([False, False, True])
    wake_event.set()
    LearnerGate(control, 0, wake_event, [], is_main=False).wait_until(lambda: next(looks))
    assert control.is_waiting("learner", 0)


def test_a_snapshot_waits_for_the_living_although_one_collector_is_gone() -> None:
    control, wake_event = new_page(num_collectors=2), WakeEvent.create()
    learner = LearnerGate(control, 0, wake_event, [])
    control.collectors[0].set(CollectorWord.IS_GONE, 1)
    answered: list[bool] = []
    thread = threading.Thread(target=lambda: answered.append(learner.request_snapshot()))
    thread.start()
    thread.join(0.2)
    assert answered == []  # the other one is still in its step: its ring must not be read yet
    control.collectors[1].set(CollectorWord.SNAPSHOT_DONE, 1)
    wake_event.set()
    thread.join(2.0)
    assert answered == [False]


def test_a_step_that_has_no_place_is_not_taken_although_granted(gates: Gates) -> None:
    control, collector, learner = gates
    learner.grant(100)
    has_room, seen = threading.Event(), list[int]()

    def free_a_slot() -> None:
        seen.append(control.collectors[0].get(CollectorWord.IS_WAITING))
        has_room.set()
        learner.wake_collectors()

    timer = threading.Timer(0.1, free_a_slot)
    timer.start()
    assert collector.wait_turn(lambda granted: granted == 100 and has_room.is_set()) is Turn.STEP
    timer.join()
    assert seen == [1]


def test_a_collector_without_room_still_serves_a_snapshot_and_leaves_when_told(gates: Gates) -> None:
    control, collector, learner = gates
    learner.grant(100)
    control.leader.bump(RankWord.SNAPSHOT_REQUEST)
    assert collector.wait_turn(lambda _: False) is Turn.SNAPSHOT
    collector.snapshot_taken()
    control.host.set(HostWord.STOP, Stop.EXIT)
    assert collector.wait_turn(lambda _: False) is Turn.STOP


def test_grants_may_count_something_else_than_env_steps(gates: Gates) -> None:
    control, collector, learner = gates
    learner.grant_each(2)
    collector.announce(500, 1)
    assert collector.wait_turn(lambda granted: granted > 1) is Turn.STEP
    assert control.collectors[0].get(CollectorWord.ENV_STEPS) == 500
    timer = threading.Timer(0.05, lambda: learner.grant_each(3))
    timer.start()
    assert collector.turn(lambda granted: granted > 2) is None
    assert collector.wait_turn(lambda granted: granted > 2) is Turn.STEP
    timer.join()
    assert control.leader.get(RankWord.GRANTED) == 3


def test_the_learner_is_woken_when_something_was_handed_over_not_at_every_step() -> None:
    control, wake_event = new_page(), WakeEvent.create()
    collector = CollectorGate(control, 0, WakeEvent.create(), [wake_event])
    LearnerGate(control, 0, wake_event, []).grant_each(9)
    woken = []
    for env_steps, handed_over in ((0, 0), (10, 0), (20, 1), (30, 1)):
        collector.announce(env_steps, handed_over)
        woken.append(wake_event.wait(0.0))
    assert woken == [True, False, True, False]


def test_the_learner_looks_again_whenever_a_collector_has_done_something(gates: Gates) -> None:
    control, collector, learner = gates
    learner.grant_each(9)
    timer = threading.Timer(0.05, lambda: collector.announce(7, 1))
    timer.start()
    learner.wait_until(lambda: control.env_steps == 7)
    timer.join()
    assert learner.env_steps == 7


def test_a_stop_request_ends_every_wait_of_the_learner(gates: Gates) -> None:
    control, _, learner = gates
    control.host.set(HostWord.STOP, Stop.FINISH)
    looked: list[int] = []
    learner.wait_until(lambda: bool(looked.append(1)))
    assert looked == [1]


def test_only_the_leader_grants_positions() -> None:
    control = new_page(num_ranks=2, num_collectors=2)
    LearnerGate(control, 1, WakeEvent.create(), []).grant_each(5)
    assert control.leader.get(RankWord.GRANTED) == 0
    LearnerGate(control, 0, WakeEvent.create(), []).grant_each(5)  # not divided among the collectors
    assert control.leader.get(RankWord.GRANTED) == 5
