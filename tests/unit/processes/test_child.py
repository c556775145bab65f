from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from offpolicy.processes.child import ORPHANED, ChildContext
from offpolicy.processes.children import Process, adopting
from offpolicy.processes.fork_server import ForkServer
from offpolicy.processes.shared_memory import SharedBlock

MODULE = """
import gc, os, signal, threading
from offpolicy.errors import ConfigError, PeerLostError
from offpolicy.processes.child import name_threads

def report(context):
    comm = open("/proc/self/comm").read().strip()
    inherited = [fd for fd in context.fds.values() if os.get_inheritable(fd)]
    context.send("seen", payload=context.payload, name=comm, inherited=inherited)

def name_two(context):
    has_ended = threading.Event()
    threads = [threading.Thread(target=has_ended.wait, name=name) for name in ("packer", "a name that is too long")]
    for thread in threads:
        thread.start()
    name_threads()
    task = "/proc/self/task"
    context.send("seen", names=[open(f"{task}/{thread.native_id}/comm").read().strip() for thread in threads],
                 main=open("/proc/self/comm").read().strip())
    has_ended.set()

def import_late(context):
    import colorsys
    context.send("seen", file=colorsys.__file__)

def collect(context):
    context.send("collector", is_enabled=gc.isenabled(), num_frozen=gc.get_freeze_count())

def print_much(context):
    for _ in range(3):
        print(100_000 * "x", flush=True)
    context.send("printed")

def refuse(context): raise ConfigError(["a: got 1", "b: got 2"])
def lose(context): raise PeerLostError("rank 1")
def stumble(context): return [][0]
def survive(context):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): os.kill(os.getpid(), number)
    context.send("alive")
def leave(context):
    context.send("leaving")
    os._exit(0)
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
class Ends:
    """A child that was started as the supervisor does, and our ends of its pipes."""

    process: Process
    messages: int
    lifeline: int

    def read(self) -> list[dict[str, Any]]:
        """All messages until the child has exited."""
        with os.fdopen(self.messages, "rb") as stream:
            return [json.loads(line) for line in stream]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "role.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    started: list[Ends] = []

    def start(function: str, payload: Any = None, fds: dict[str, int] | None = None, output: str = os.devnull) -> Ends:
        (spec_read, spec_write), (message_read, message_write), (life_read, life_write) = (os.pipe() for _ in range(3))
        shared, log_fd = fds or {}, os.open(output, os.O_WRONLY)
        spec = {
            "role": "collector", "index": 3, "target": f"role:{function}", "payload": payload, "fds": list(shared),
            "supervisor_pid": os.getpid(),
        }  # fmt: skip
        own = (spec_read, message_write, life_read)
        stdio = (os.open(os.devnull, os.O_RDONLY), log_fd, log_fd)
        process = Process(server.fork("offpolicy.processes.child:main", stdio, [*own, *shared.values()]))
        for fd in (*own, log_fd):
            os.close(fd)
        with os.fdopen(spec_write, "w") as sink:
            json.dump(spec, sink)
        started.append(Ends(process, message_read, life_write))
        return started[-1]

    with ForkServer([], os.environ) as server, adopting():
        yield start
    for ends in started:
        ends.process.kill()
        ends.process.wait()


def test_child_runs_its_target_with_its_payload_under_its_name(start: Any) -> None:
    block = SharedBlock.create("test", 4096)
    child = start("report", {"a": [1, 2]}, {"block": block.fd})
    (message, _) = child.read()
    assert message == {
        "kind": "seen", "payload": {"a": [1, 2]}, "name": "op-collector-3", "inherited": [],
    }  # fmt: skip
    assert child.process.wait() == 0


def test_a_file_of_the_working_directory_shadows_no_module_of_python(start: Any, tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("")
    (message, _) = start("import_late").read()
    assert message["file"] != str(tmp_path / "colorsys.py")


@pytest.mark.parametrize(
    ("function", "code", "error", "text", "is_consequence"),
    [
        ("refuse", 2, "ConfigError", "a: got 1\nb: got 2", False),
        ("lose", 70, "PeerLostError", "rank 1", True),
        ("stumble", 1, "IndexError", "list index out of range", False),
        ("nothing", 1, "AttributeError", "module 'role' has no attribute 'nothing'", False),
    ],
)
def test_an_error_is_reported_and_decides_the_exit_code(
    start: Any, function: str, code: int, error: str, text: str, is_consequence: bool
) -> None:
    child = start(function)
    (message,) = child.read()
    traceback = message.pop("traceback")  # of an error of ours the text says it all, and train.log has the rest
    assert traceback == "" if error.endswith(("ConfigError", "PeerLostError")) else traceback.startswith("Traceback (")
    assert message == {
        "kind": "error", "text": text, "error": error, "code": code, "is_consequence": is_consequence,
    }  # fmt: skip
    assert child.process.wait() == code


def test_an_error_is_sent_before_anything_is_closed(start: Any) -> None:
    child = start("close_for_ever")
    message = json.loads(os.read(child.messages, 10_000))
    assert (message["kind"], message["error"]) == ("error", "IndexError")
    assert child.process.poll() is None  # until it is killed


def test_what_is_to_be_closed_at_the_end_is_closed_without_an_error_too(start: Any) -> None:
    child = start("close_late")
    assert [message["kind"] for message in child.read()] == ["working", "finished", "closed"]
    assert child.process.wait() == 0


def test_what_closing_raises_changes_nothing_of_how_a_child_has_ended(start: Any) -> None:
    child = start("close_badly")
    assert [message["kind"] for message in child.read()] == ["working", "finished"]
    assert child.process.wait() == 0
    child = start("close_badly_after_an_error")
    assert [message.get("error") for message in child.read()] == [None, "IndexError"]


def test_a_full_disk_under_what_a_child_prints_is_no_failure(start: Any) -> None:
    """`print` in an environment raised, and the run ended."""
    child = start("print_much", output="/dev/full")
    assert child.read() == [{"kind": "printed"}, {"kind": "finished"}]
    assert child.process.wait() == 0
    child = start("stumble", output="/dev/full")
    assert [message["error"] for message in child.read()] == ["IndexError"]
    assert child.process.wait() == 1


def test_terminal_signals_are_ignored(start: Any) -> None:
    assert start("survive").read() == [{"kind": "alive"}, {"kind": "finished"}]


def test_a_child_that_exits_with_0_before_its_main_function_returns_has_not_finished(start: Any) -> None:
    child = start("leave")
    assert child.read() == [{"kind": "leaving"}]
    assert child.process.wait() == 0


def test_a_child_whose_lifeline_closes_exits(start: Any) -> None:
    child = start("hang")
    assert os.read(child.messages, 100) == b'{"kind": "started"}\n'
    os.close(child.lifeline)
    assert child.process.wait(20.0) == ORPHANED


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
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN  # as in every Python process
    ChildContext("learner", 0, {}, {}, write).send("late")
    os.close(write)
