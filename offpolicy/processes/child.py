"""The entry of every child process, which is a fork of the run's fork server.

A child takes orders from its supervisor only (the run's signals are ignored), dies with it by two independent
mechanisms (PDEATHSIG, and end-of-file on the lifeline pipe), and reports its failure with a traceback.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offpolicy import fault
from offpolicy.children import (
    GRACE_S,
    NAME_CHARACTERS,
    ORPHANED,
    die_with_parent,
    is_held,
    leave_now,
    leave_signals,
    resolve,
    show_name,
)
from offpolicy.errors import OffPolicyError
from offpolicy.output import drop_refused
from offpolicy.processes.oom import be_killed_first
from offpolicy.processes.shared_memory import SharedBlock, WakeEvent


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
            fault.hit("message.send")
            while line:
                line = line[os.write(self.message_fd, line) :]


def die_with_supervisor(parent_pid: int, lifeline_fd: int) -> None:
    """Ends this process when its parent ends: by the kernel's signal, and by the lifeline for when that fails."""
    die_with_parent(parent_pid)

    def watch() -> None:
        while os.read(lifeline_fd, 1):
            pass
        os._exit(ORPHANED)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def name_threads() -> None:
    """Shows Python's names of this process's threads in `ps` and `top`, as Python itself does from 3.14 on.

    Threads of libraries keep theirs: OpenMP's workers have the name of the thread that started them.
    """
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            with contextlib.suppress(OSError):  # it has ended, or a sandbox refuses it
                Path(f"/proc/self/task/{thread.native_id}/comm").write_text(thread.name[:NAME_CHARACTERS])


def main(fds: list[int]) -> int:
    """Entry of a fork: reads the spec from the first descriptor and runs its target; returns the exit code."""
    code = _run(fds)
    if code or is_held(GRACE_S):
        leave_now(code)
    return code


def _run(received: list[int]) -> int:
    """Runs the target and reports a failure; returns the exit code."""
    spec_fd, message_fd, lifeline_fd, *shared = received
    with os.fdopen(spec_fd, "rb") as source:
        spec = json.load(source)
    for fd in (message_fd, lifeline_fd, *shared):
        os.set_inheritable(fd, False)  # programs that an environment starts must not keep our pipes open
    drop_refused("stdout", "stderr")  # to train.log, on a disk that may be full
    leave_signals()
    die_with_supervisor(spec["supervisor_pid"], lifeline_fd)
    show_name(f"op-{spec['role']}-{spec['index']}")
    be_killed_first(spec["role"])
    fault.arm(spec["role"], spec["index"])
    fault.hit("child.start")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    sys.path.append(os.getcwd())  # where `module:EnvId` lives; last, so that it shadows nothing
    fds = dict(zip(spec["fds"], shared, strict=True))
    context = ChildContext(spec["role"], spec["index"], spec["payload"], fds, message_fd)
    code = _call(context, spec["target"])
    try:
        context.closing.close()
    except BaseException:  # how the child has ended is sent
        traceback.print_exc()
    return code


def _call(context: ChildContext, target: str) -> int:
    """Calls the main function of a child and sends how it has ended; returns the exit code."""
    try:
        resolve(target)(context)
    except BaseException as error:  # the last frame of the process: everything is reported
        kind = type(error) if isinstance(error, OffPolicyError) else OffPolicyError
        traceback.print_exc()  # into train.log, also that of an error whose text says all that a user needs
        context.send(
            "error",
            text=str(error),
            error=type(error).__name__,
            traceback="" if isinstance(error, OffPolicyError) else traceback.format_exc(),
            code=kind.exit_code,
            is_consequence=kind.is_consequence,
        )
        return kind.exit_code
    context.send("finished")
    return 0
