"""The child's side: how a process of a run begins, reports and ends.

The run's signals do nothing to it. It dies with its supervisor by two independent mechanisms (PDEATHSIG, and the end of
the lifeline pipe), and reports its failure with a traceback.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import pkgutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from offpolicy import fault
from offpolicy.errors import ConfigError, OffPolicyError
from offpolicy.output import drop_refused
from offpolicy.processes.deaths import be_killed_first
from offpolicy.processes.shared_memory import SharedBlock, WakeEvent
from offpolicy.processes.signals import leave_signals

ORPHANED = 71  # exit code of a process whose parent was dead already
CALL_THREAD = "call within"  # name of the threads of `call_within`
GRACE_S = 5.0  # for each thread or process that an environment left running to end by itself
NAME_CHARACTERS = 15  # that the kernel keeps of a thread's name
MAIN_GUARD = (
    "the processes of a run import the module that registers the environment: write env.id=module:EnvId, and train"
    ' below `if __name__ == "__main__":`'
)
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15

T = TypeVar("T")

is_child = False  # True in a process of a run


@dataclass(frozen=True, slots=True)
class ChildContext:
    """Argument of a child's main function."""

    role: str
    index: int
    payload: Mapping[str, Any]  # plain JSON data of the role
    fds: Mapping[str, int]
    message_fd: int
    # What is closed at the very end: the main function may have failed, and closing may hide why by a hang.
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def block(self, name: str, at_least: int = 0) -> memoryview:
        """Returns the shared memory called `name`, grown first to `at_least` bytes."""
        return SharedBlock.attach(self.fds[name], at_least).buffer

    def wake_event(self, name: str) -> WakeEvent:
        """Returns the wake event called `name`."""
        return WakeEvent(self.fds[name])

    def send(self, kind: str, **fields: Any) -> None:  # Any: JSON values
        """Sends a message to the supervisor; a supervisor that has exited is not an error here."""
        line = json.dumps({"kind": kind, **fields}).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            while line:
                line = line[os.write(self.message_fd, line) :]


def main(fds: list[int]) -> int:
    """Entry of a fork: reads from the first descriptor what to run, and runs it; returns the exit code."""
    global is_child
    is_child = True
    spec_fd, message_fd, lifeline_fd, *shared = fds
    with os.fdopen(spec_fd, "rb") as source:
        role, index, target, payload, names, supervisor_pid = json.load(source)
    for fd in (message_fd, lifeline_fd, *shared):
        os.set_inheritable(fd, False)  # programs that an environment starts must not keep our pipes open
    drop_refused("stdout", "stderr")  # to train.log, on a disk that may be full
    leave_signals()
    die_with_parent(supervisor_pid)
    threading.Thread(target=_end_with, args=(lifeline_fd,), name="lifeline", daemon=True).start()
    show_name(f"op-{role}-{index}")
    be_killed_first(role)
    fault.arm(role, index)
    fault.hit("child.start")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    sys.path.append(os.getcwd())  # where `module:EnvId` lives; last, so that it shadows nothing
    context = ChildContext(role, index, payload, dict(zip(names, shared, strict=True)), message_fd)
    code = _call(context, target)
    try:
        context.closing.close()
    except BaseException:  # how the child has ended is sent
        traceback.print_exc()
    if code or is_held(GRACE_S):
        leave_now(code)
    return code


def _call(context: ChildContext, target: str) -> int:
    """Calls the main function of a child, or answers a call, and sends how it has ended; returns the exit code."""
    try:
        result = pkgutil.resolve_name(target)(context.payload if context.role == "call" else context)
    except BaseException as error:  # the last frame of the process: everything is reported
        kind = type(error) if isinstance(error, OffPolicyError) else OffPolicyError
        traceback.print_exc()  # into train.log, also that of an error whose text says all that a user needs
        context.send(
            "error",
            text=str(error),
            error=type(error).__name__,
            problems=error.problems if isinstance(error, ConfigError) else None,
            traceback="" if isinstance(error, OffPolicyError) else traceback.format_exc(),
            code=kind.exit_code,
            is_consequence=kind.is_consequence,
        )
        return kind.exit_code
    context.send("finished", result=result)
    return 0


# -- calls ------------------------------------------------------------------------------------------------------------


def call_within(timeout_s: float, call: Callable[[], T]) -> T:
    """Calls a function in a thread; returns its result, or raises its error, or TimeoutError after `timeout_s`.

    Its thread then stays, as in torch's calls of a store that is frozen. Such a process must end by `leave_now`.
    """
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name=CALL_THREAD, daemon=True).start()
    try:
        return future.result(timeout_s)
    except TimeoutError as error:
        raise TimeoutError(str(error) or "no answer") from error


# -- names ------------------------------------------------------------------------------------------------------------


def show_name(name: str) -> None:
    """Names the process in `ps` and `top`."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:NAME_CHARACTERS])


def name_threads() -> None:
    """Shows Python's names of this process's threads in `ps` and `top`, as Python itself does from 3.14 on."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            with contextlib.suppress(OSError):  # it has ended, or a sandbox refuses it
                Path(f"/proc/self/task/{thread.native_id}/comm").write_text(thread.name[:NAME_CHARACTERS])


# -- ends -------------------------------------------------------------------------------------------------------------


def die_with_parent(parent_pid: int) -> None:
    """Makes the kernel kill this process when the thread of its parent `parent_pid` that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the request; the signal will never come
        os._exit(ORPHANED)


def _end_with(lifeline_fd: int) -> None:
    """Ends this process with the supervisor, which holds the other end, for when the kernel's signal fails."""
    while os.read(lifeline_fd, 1):
        pass
    os._exit(ORPHANED)


def is_held(grace_s: float = 0.0) -> bool:
    """True if the interpreter would wait, perhaps for ever, for threads or processes that were left running.

    Those that an environment has started have `grace_s` to end by themselves, as what writes a last file does.
    """
    pools = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", {})  # the interpreter ends them
    threads = [one for one in threading.enumerate() if one is not threading.main_thread() and one not in pools]
    if any(one.name == CALL_THREAD for one in threads):
        return True
    processes = sys.modules.get("multiprocessing.process")
    left = [*(one for one in threads if not one.daemon), *(processes.active_children() if processes else ())]
    for one in left:
        one.join(grace_s)
        if one.is_alive():
            return True
    return False


def leave_now(code: int) -> NoReturn:
    """Ends this process without taking its interpreter down, where a thread in a library's call would abort it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a full disk, or what an environment has made of the stream
            stream.flush()
    os._exit(code)
