"""The handshake: steps are granted, snapshots are taken between steps, stop is honoured."""

from __future__ import annotations

import threading

import pytest

from offpolicy.processes.control_page import CollectorWord, ControlPage, HostWord, RankWord, Stop
from offpolicy.processes.handshake import LearnerGate
from offpolicy.processes.shared_memory import WakeEvent


def new_page(num_ranks: int = 1, num_collectors: int = 1) -> ControlPage:
    buffer = memoryview(bytearray(ControlPage.nbytes(num_ranks, num_collectors)))
    return ControlPage(buffer, num_ranks, num_collectors)


@pytest.mark.promise("no-hang")
def test_a_stop_request_ends_the_learners_wait() -> None:
    control = new_page()
    learner = LearnerGate(control, 0, WakeEvent.create(), [])
    control.host[HostWord.STOP] = Stop.FINISH
    learner.wait_for(1000)
    assert learner.env_steps == 0


def test_the_learner_waits_until_every_collector_has_done_its_share() -> None:
    control, wake_event = new_page(num_collectors=2), WakeEvent.create()
    learner = LearnerGate(control, 0, wake_event, [])
    control.collectors[0][CollectorWord.ENV_STEPS] = 9  # more than its part, but the other one has done nothing

    def second_collector() -> None:
        control.collectors[1][CollectorWord.ENV_STEPS] = 3
        wake_event.set()

    timer = threading.Timer(0.1, second_collector)
    timer.start()
    learner.wait_for(6)
    assert learner.env_steps == 12
    timer.join()


def test_only_the_leader_grants() -> None:
    control = new_page(num_ranks=2, num_collectors=2)
    LearnerGate(control, 1, WakeEvent.create(), []).grant(10)
    assert control.leader[RankWord.GRANTED] == 0
    LearnerGate(control, 0, WakeEvent.create(), [], num_collectors=4).grant(10)  # two more on another host
    assert control.leader[RankWord.GRANTED] == 3


def test_a_snapshot_waits_for_the_others_where_one_collector_is_gone() -> None:
    control, wake_event = new_page(num_collectors=2), WakeEvent.create()
    learner = LearnerGate(control, 0, wake_event, [])
    control.collectors[0][CollectorWord.IS_GONE] = 1
    answered: list[bool] = []
    thread = threading.Thread(target=lambda: answered.append(learner.request_snapshot()))
    thread.start()
    thread.join(0.2)
    assert answered == []  # the other one is still in its step: its ring must not be read yet
    control.collectors[1][CollectorWord.SNAPSHOT_DONE] = 1
    wake_event.set()
    thread.join(2.0)
    assert answered == [False]


@pytest.mark.parametrize(
    ("done", "released", "env_steps", "level", "may_go"),
    [
        (1, 1, 9, Stop.RUN, True),
        (1, 1, 10, Stop.RUN, False),  # all that was granted
        (1, 0, 9, Stop.RUN, False),  # its rows are still being saved
        (0, 0, 9, Stop.RUN, True),  # it owes a snapshot
        (1, 1, 9, Stop.FINISH, False),
        (1, 1, 10, Stop.EXIT, True),
    ],
)
def test_a_collector_may_go_where_its_gate_lets_it(
    done: int, released: int, env_steps: int, level: Stop, may_go: bool
) -> None:
    page = new_page(2, 3)
    page.leader[RankWord.GRANTED] = 10
    page.leader[RankWord.SNAPSHOT_REQUEST] = 1
    page.leader[RankWord.SNAPSHOT_RELEASE] = released
    page.collectors[1][CollectorWord.SNAPSHOT_DONE] = done
    page.collectors[1][CollectorWord.ENV_STEPS] = env_steps
    page.host[HostWord.STOP] = level
    assert page.may_go("collector", 1) is may_go
    assert not page.may_go("learner", 1)
