from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from offpolicy.processes.child import ORPHANED, ChildContext
from offpolicy.processes.children import Child, adopting
from offpolicy.processes.fork_server import ForkServer
from offpolicy.processes.shared_memory import SharedBlock
from tests.unit.processes.conftest import wait_until

MODULE = """
import os, threading
from offpolicy.errors import ConfigError, PeerLostError

def report(context):
    comm = open("/proc/self/comm").read().strip()
    inherited = [fd for fd in context.fds.values() if os.get_inheritable(fd)]
    context.send("seen", payload=context.payload, name=comm, inherited=inherited)

def import_late(context):
    import colorsys
    context.send("seen", file=colorsys.__file__)

def print_much(context):
    for _ in range(3):
        print(100_000 * "x", flush=True)
    context.send("printed")

def refuse(context): raise ConfigError(["a: got 1", "b: got 2"])
def lose(context): raise PeerLostError("rank 1")
def stumble(context): return [][0]
def close_for_ever(context):
    context.closing.callback(threading.Event().wait)
    stumble(context)
def close_late(context):
    context.closing.callback(context.send, "closed")
    context.send("working")
def close_badly(context):
    context.closing.callback(lambda: 1 / 0)
    context.send("working")
def close_badly_after_an_error(context):
    close_badly(context)
    stumble(context)
def hang(context):
    context.send("started")
    threading.Event().wait()
"""


@dataclass
class Starter:
    """Starts functions of `MODULE` as children, as the supervisor does."""

    server: ForkServer
    lifeline: tuple[int, int]
    started: list[Child]

    def __call__(
        self, function: str, payload: Any = None, fds: dict[str, int] | None = None, output: str = os.devnull
    ) -> Child:
        with open(output, "wb") as log:
            target, lifeline = f"role:{function}", self.lifeline[0]
            child = self.server.start("collector", 3, target, payload, fds or {}, log.fileno(), lifeline)
        self.started.append(child)
        return child


def messages_of(child: Child, code: int = 0) -> list[Any]:
    """All messages of a child that ends with this code, but its error and its end."""
    assert child.wait(20.0) == code
    found = list[Any]()
    while (read := child.read()) is not None:
        found += read
    return found


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starter]:
    (tmp_path / "role.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    with ForkServer([], os.environ) as server, adopting():
        starter = Starter(server, os.pipe(), [])
        yield starter
    for child in starter.started:
        child.kill()
        child.wait(20.0)


def test_child_runs_its_target_with_its_payload_under_its_name(start: Starter) -> None:
    block = SharedBlock.create("test", 4096)
    child = start("report", {"a": [1, 2]}, {"block": block.fd})
    expected = {"kind": "seen", "payload": {"a": [1, 2]}, "name": "op-collector-3", "inherited": []}
    assert messages_of(child) == [expected]
    assert child.has_finished


def test_a_file_of_the_working_directory_shadows_no_module_of_python(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("")
    (message,) = messages_of(start("import_late"))
    assert message["file"] != str(tmp_path / "colorsys.py")


@pytest.mark.parametrize(
    ("function", "code", "error", "text", "is_consequence"),
    [
        ("refuse", 2, "ConfigError", "a: got 1\nb: got 2", False),
        ("lose", 70, "PeerLostError", "rank 1", True),
        ("stumble", 1, "IndexError", "list index out of range", False),
    ],
)
def test_an_error_is_reported_and_decides_the_exit_code(
    start: Starter, function: str, code: int, error: str, text: str, is_consequence: bool
) -> None:
    child = start(function)
    assert messages_of(child, code) == []
    traceback = child.error.pop("traceback")  # of an error of ours the text says it all, and train.log has the rest
    assert traceback.startswith("Traceback (") if error == "IndexError" else traceback == ""
    assert child.error == {
        "kind": "error", "text": text, "error": error, "code": code, "is_consequence": is_consequence,
        "problems": text.split("\n") if error == "ConfigError" else None,
    }  # fmt: skip


def test_an_error_is_sent_before_anything_is_closed(start: Starter) -> None:
    child = start("close_for_ever")
    wait_until(lambda: child.read() is not None)
    assert child.error["error"] == "IndexError"
    assert child.poll() is None  # until it is killed


def test_what_closing_does_changes_nothing_of_how_a_child_has_ended(start: Starter) -> None:
    child = start("close_late")
    assert [message["kind"] for message in messages_of(child)] == ["working", "closed"]
    child = start("close_badly")
    assert [message["kind"] for message in messages_of(child)] == ["working"]
    assert child.has_finished
    child = start("close_badly_after_an_error")
    messages_of(child, 1)
    assert (child.error["error"], child.has_finished) == ("IndexError", False)


def test_a_full_disk_under_what_a_child_prints_is_no_failure(start: Starter) -> None:
    """`print` in an environment raised, and the run ended."""
    assert messages_of(start("print_much", output="/dev/full")) == [{"kind": "printed"}]
    child = start("stumble", output="/dev/full")
    messages_of(child, 1)
    assert child.error["error"] == "IndexError"


def test_a_child_whose_lifeline_closes_exits(start: Starter) -> None:
    child = start("hang")
    wait_until(lambda: child.read() is not None)
    os.close(start.lifeline[1])
    assert child.wait(20.0) == ORPHANED


def test_a_message_longer_than_a_pipe_arrives_whole() -> None:
    read, write = os.pipe()
    context = ChildContext("learner", 0, {}, {}, write)
    thread = threading.Thread(target=lambda: (context.send("long", text="x" * 300_000), os.close(write)), daemon=True)
    thread.start()
    with os.fdopen(read, "rb") as stream:
        assert json.loads(stream.read()) == {"kind": "long", "text": "x" * 300_000}
    thread.join(20.0)


def test_a_message_to_a_supervisor_that_is_gone_is_dropped() -> None:
    read, write = os.pipe()
    os.close(read)
    ChildContext("learner", 0, {}, {}, write).send("late")
    os.close(write)
