"""Callbacks are called with what a run reports; one that raises or blocks is named, counted and left behind."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offpolicy.errors import ConfigError
from offpolicy.logger.callbacks import QUEUE_CALLS, Callback, Callbacks, load_callback
from offpolicy.types import EvalResult

RESULT = EvalResult(500, -7.0, 1.0, 200.0, 3)


class Kept(Callback):
    """Keeps what it gets, on whatever thread that is."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def on_record(self, record: Any) -> None:
        self.got.append(record)

    def on_checkpoint(self, path: Path) -> None:
        self.got.append((path, threading.current_thread().name))


class Stuck(Callback):
    """Blocks until the test ends."""

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()

    def on_record(self, record: Any) -> None:
        self.begun.set()
        self.end.wait()


class Clears(Callback):
    """Changes what it gets, and says that it has arrived."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)

    def on_record(self, record: Any) -> None:
        record.clear()
        self.arrived.release()


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Raises(Callback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_record(self, record: Any) -> None:
        raise self.error


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    callback = Stuck()
    yield callback
    callback.end.set()
    for thread in threading.enumerate():  # left behind by the test, they would read the next one's clock
        if thread.name == "callback":
            thread.join(10.0)
            assert not thread.is_alive()


@pytest.mark.promise("python")
def test_calls_come_in_order_on_a_thread_of_their_own() -> None:
    kept, record = Kept(), {"env_steps": 1.0}
    called = Callbacks([Clears(), kept])
    called.post("on_record", record)
    called.post("on_evaluation", RESULT)  # a method that it leaves out does nothing
    called.post("on_checkpoint", Path("checkpoints/step-000000000001"))
    called.settle()
    assert kept.got == [record, (Path("checkpoints/step-000000000001"), "callback")]
    assert record == {"env_steps": 1.0}, "what a callback does to a record is not recorded"
    _, spent = called.section()
    assert spent["name"].endswith("test_callbacks:Kept")
    assert (spent["calls"], spent["dropped"]) == (3, 0)
    called.close()


def test_a_burst_of_episodes_is_one_entry_of_the_queue(stuck: Stuck) -> None:
    class Episodes(Kept):
        def on_episode(self, record: Any) -> None:
            self.got.append(record["ep_return"])

    kept = Episodes()
    called = Callbacks([kept, stuck])
    called.post("on_record", {"env_steps": 1.0})
    stuck.begun.wait()
    called.post("on_episode", *({"ep_return": float(number)} for number in range(3 * QUEUE_CALLS)))
    called.post("on_episode")
    called.settle(0.1)
    assert kept.got[1:] == [float(number) for number in range(3 * QUEUE_CALLS)]
    for _ in range(QUEUE_CALLS):
        called.post("on_episode", {"ep_return": 1.0}, {"ep_return": 1.0})
    assert called.section()[1]["dropped"] == 2
    called.close()


def test_one_that_raises_is_named_once_and_the_others_go_on() -> None:
    """`asyncio` cancels with an error that is no `Exception`: the thread ended, and the end of the run waited."""
    for error, cause in (
        (ValueError("no\nat all"), "ValueError: no at all"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError(), "CancelledError"),
        (Mute(), "Mute"),
    ):
        kept = Kept()
        called = Callbacks([Raises(error), kept])
        for step in range(3):
            called.post("on_record", {"env_steps": float(step)})
            called.settle(5.0)
        (warning,) = called.take_warnings()
        assert warning.startswith("warning: callback ")
        assert warning.endswith(f":Raises is not called any more in this run: on_record: {cause}")
        assert [record["env_steps"] for record in kept.got] == [0.0, 1.0, 2.0]
        raised = called.section()[0]
        assert (raised["calls"], raised["dropped"], raised["error"]) == (1, 2, f"on_record: {cause}")
        called.close()


def test_one_that_blocks_delays_nothing_and_is_left_behind(stuck: Stuck) -> None:
    other = Clears()
    called = Callbacks([stuck, other])
    for step in range(QUEUE_CALLS + 20):
        called.post("on_record", {"env_steps": float(step)})
        assert other.arrived.acquire(timeout=5.0)
        assert stuck.begun.wait(5.0)
    called.settle(timeout_s=0.01)
    behind, late = called.take_warnings()
    assert ":Stuck is behind: 256 calls wait, others are dropped" in behind
    assert ":Stuck did not return within 0.01 s" in late
    assert called.section()[0]["dropped"] == 19  # one is being made, as many as may wait do
    called.close(timeout_s=0.01)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module `mine_callbacks`."""
    text = (
        "from offpolicy.logger.callbacks import Callback\n"
        "class Good(Callback):\n    pass\n"
        "class Needy(Callback):\n    def __init__(self, x):\n        pass\n"
        "good, bad = Good(), object()\n"
    )
    (tmp_path / "mine_callbacks.py").write_text(text)
    (tmp_path / "a_script.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine_callbacks", raising=False)


@pytest.mark.usefixtures("mine")
def test_a_class_is_made_and_an_object_taken_and_what_cannot_be_loaded_is_refused() -> None:
    assert type(load_callback("mine_callbacks:Good")).__name__ == "Good"
    assert load_callback("mine_callbacks:good") is load_callback("mine_callbacks:good")
    for target, cause in (
        ("nowhere_at_all:X", "ModuleNotFoundError"),
        ("mine_callbacks:Best", "has no attribute 'Best'"),
        ("mine_callbacks:Needy", "missing 1 required positional argument"),
        ("a_script:Good", "SystemExit: 3"),
    ):
        with pytest.raises(ConfigError, match=f"callbacks: got '{target}', which cannot be loaded: .*{cause}"):
            load_callback(target)


@pytest.mark.usefixtures("mine")
def test_a_module_of_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A console script has its own directory on the path, and no other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    importlib.invalidate_caches()
    assert type(load_callback("mine_callbacks:Good")).__name__ == "Good"
