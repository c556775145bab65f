"""Children that are listened to, reaped and killed, with processes that only remember what was done to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from offpolicy.errors import StartError
from offpolicy.processes.child_processes import Child, ChildProcesses, Event, Start
from tests.fakes import refused
from tests.unit.processes.conftest import CRASH, NO_SERVER, Process, Stage, exit_of


class Room:
    """Children without a supervisor; `pipes` are the ends into which they write their messages."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.messages: list[tuple[str, Any]] = []
        self.children = ChildProcesses(
            NO_SERVER, 2, lambda: self.now_s, lambda child, m: self.messages.append((child.name, m))
        )
        self.pipes: list[int] = []

    def add(self, role: str, index: int) -> tuple[Child, Process]:
        process, (read, write) = Process(1000 + len(self.pipes)), os.pipe()
        self.pipes.append(write)
        child = Child(Start(role, index, "module:main", {}, {}), process, process.pidfd, read)  # type: ignore[arg-type]
        self.children.add(child)
        return child, process

    def send(self, number: int, message: dict[str, Any]) -> None:
        os.write(self.pipes[number], json.dumps(message).encode() + b"\n")


@pytest.fixture
def room() -> Iterator[Room]:
    made = Room()
    yield made
    made.children.close()
    for pipe in made.pipes:
        os.close(pipe)


def test_messages_are_handed_on_in_order_and_the_error_stays_with_its_child(room: Room) -> None:
    child, _ = room.add("collector", 1)
    for message in ({"kind": "note", "text": "a"}, CRASH, {"kind": "note", "text": "b"}):
        room.send(0, message)
    assert room.children.wait(10.0) == [Event(child, has_ended=False)]
    assert (room.children.read(child), room.children.read(child)) == (True, False)
    assert [message["text"] for _, message in room.messages] == ["a", "b"]
    assert child.error == CRASH


def test_a_child_that_has_ended_is_finished_with_its_last_messages_and_stays_until_it_is_removed(room: Room) -> None:
    (child, process), (other, _) = room.add("learner", 0), room.add("collector", 0)
    room.send(0, {"kind": "done"})
    room.send(0, {"kind": "finished"})
    process.exit(3)
    assert Event(child, has_ended=True) in room.children.wait(10.0)
    assert room.children.finish(child) == 3
    assert room.messages == [("learner 0", {"kind": "done"})]
    assert (child.has_finished, other.has_finished) == (True, False)
    assert (child in room.children, room.children.learners) == (True, [child])
    room.children.remove(child)
    assert (list(room.children), room.children.learners) == ([other], [])
    assert room.children.wait(0.0) == []


def test_killed_children_are_marked_and_those_that_the_kernel_holds_are_left_alone(room: Room) -> None:
    (first, first_process), (second, held) = room.add("learner", 0), room.add("collector", 0)
    held.kill = lambda: None  # type: ignore[method-assign]
    room.children.kill_all()
    assert (first_process.code, first.is_killed, second.is_killed) == (-signal.SIGKILL, True, True)
    room.children.give_up(second)
    assert list(room.children) == [first]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(second.messages)


def test_a_process_that_the_host_program_starts_meanwhile_outlives_the_run() -> None:
    with Stage("learner-0") as stage:
        other = subprocess.Popen(["sleep", "60"])
        stage.run({0: exit_of(stage, "learner-0")})
    assert other.poll() is None
    other.kill()
    assert other.wait() == -signal.SIGKILL


def test_a_refusal_of_the_machine_leaves_no_descriptor_and_no_process(room: Room) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    said = "collector 3 cannot be started: Resource temporarily unavailable"
    with refused("spawn:EAGAIN"), pytest.raises(StartError, match=said):
        room.children.spawn(Start("collector", 3, "module:main", {}, {}))
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert len(room.children) == 0


def test_a_child_that_failed_before_it_was_killed_for_a_hang_ends_as_it_has_failed(room: Room) -> None:
    (failed, _), (silent, _) = room.add("collector", 0), room.add("collector", 1)
    failed.error = CRASH
    for child in (failed, silent):
        room.children.kill_hung(child)
    assert (failed.is_killed, silent.is_killed) == (False, True)
