"""A call in another process: its result, its error, or how the process has ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from offpolicy import errors
from offpolicy.children import (
    GRACE_S,
    describe_exit,
    die_with_parent,
    is_held,
    leave_now,
    leave_signals,
    resolve,
    scratch_file,
    signals_blocked,
    tail_of,
)
from offpolicy.descendants import KILL_TIMEOUT_S, Descendants, adopting, children_of
from offpolicy.errors import ConfigError, OffPolicyError
from offpolicy.fork_server import ForkServer, Process, Stdio
from offpolicy.start import cleaned_up

_ROOT = str(Path(__file__).resolve().parents[1])
# The root is on the path just for this import: the child must run our code, but find nothing else there.
_CHILD = (
    "import sys; sys.path.insert(0, sys.argv[1]); import offpolicy.calls; sys.path.pop(0);"
    " offpolicy.calls.answer_call()"
)


class ChildError(Exception):
    """A call in a child process has no result: `reason` says how the child ended, `output` is what it printed last."""

    def __init__(self, reason: str, output: str = "") -> None:
        super().__init__(reason)
        self.reason, self.output = reason, output


class ChildTimeout(ChildError):
    """The child was killed because it did not finish in time."""


class ChildRaised(ChildError):
    """The function raised an error that is none of the library's; its traceback ends the output."""


def call_in_child(
    target: str, payload: Any = None, *, timeout_s: float | None = None, server: ForkServer | None = None
) -> Any:  # Any: JSON values
    """Returns the JSON result of the function `module:function`, called with `payload` in a process of its own.

    That is a fresh interpreter, or a fork of `server`. It, and whatever it started, is killed when the call ends and
    when this process dies. It finds modules of the working directory, after all others. An `OffPolicyError` of the
    function is raised here with its type and text, any other error as `ChildRaised`. Raises `ChildTimeout` after
    `timeout_s` and `ChildError` if the child died.
    """
    request = {"target": target, "payload": payload, "parent_pid": os.getpid()}
    known, descendants = children_of(os.getpid()), Descendants()
    # Files, not pipes: a program that the function started may hold them open long after the answer.
    with scratch_file() as source, scratch_file() as answer, scratch_file() as output:
        source.write(json.dumps(request).encode())
        source.seek(0)
        stdio = Stdio(source.fileno(), output.fileno(), output.fileno())
        with adopting(), cleaned_up(lambda: descendants.kill(known)):
            child = _start(target, answer.fileno(), stdio, descendants, server)
            try:
                code = child.wait(timeout_s)
            except subprocess.TimeoutExpired as error:
                raise ChildTimeout(f"gave no answer within {timeout_s:g} s", tail_of(output)) from error
            finally:
                descendants.note([child.pid])
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it
                    child.wait(KILL_TIMEOUT_S)
                descendants.kill(known)  # what the function has started in a session of its own
        answer.seek(0)
        text, printed = answer.read(), tail_of(output)
    if code != 0 or not text:
        raise ChildError(describe_exit(code), printed)
    return _result(json.loads(text), printed)


def _start(
    target: str, answer_fd: int, stdio: Stdio, descendants: Descendants, server: ForkServer | None
) -> Process | subprocess.Popen[bytes]:
    """Starts a process that answers a call; a fresh interpreter shows `target` in `ps`."""
    if server is not None:
        marks = descendants.marks(os.environ)
        return server.fork("offpolicy.calls:answer_forked", [answer_fd], stdio=stdio, marks=marks)
    command = [sys.executable, "-P", "-X", "faulthandler", "-c", _CHILD, _ROOT, str(answer_fd), target]
    with signals_blocked():  # or a Ctrl-C might come before the clean-up can find the child
        return subprocess.Popen(
            command, stdin=stdio.stdin, stdout=stdio.stdout, stderr=stdio.stderr, pass_fds=(answer_fd,),
            start_new_session=True, env=descendants.environment(os.environ),
        )  # fmt: skip


def _result(answer: dict[str, Any], output: str) -> Any:
    if "result" in answer:
        return answer["result"]
    kind = getattr(errors, answer["error"], None) if answer["is_ours"] else None
    if kind is None:
        raise ChildRaised(f"{answer['error']}: {answer['text']}", output)
    raise kind(answer["text"])


def answer_call() -> None:
    """Entry of a fresh interpreter of `call_in_child`, which got the descriptor of the answer as an argument."""
    _answer(int(sys.argv[2]))


def answer_forked(fds: list[int]) -> int:
    """Entry of a fork of `call_in_child`."""
    os.setsid()
    _answer(fds[0])
    return 0


def _answer(answer_fd: int) -> None:
    """Reads the request from stdin, calls the function and writes the answer to the given file."""
    os.set_inheritable(answer_fd, False)
    request = json.load(sys.stdin)
    leave_signals()
    die_with_parent(request["parent_pid"])
    sys.path.append(os.getcwd())  # last, so that it shadows nothing
    answer: dict[str, Any]
    try:
        answer = {"result": resolve(request["target"])(request["payload"])}
    except BaseException as error:  # the last frame of the process: everything is reported
        traceback.print_exc()
        text = list(error.problems) if isinstance(error, ConfigError) else str(error)
        answer = {"error": type(error).__name__, "is_ours": isinstance(error, OffPolicyError), "text": text}
    with os.fdopen(answer_fd, "w") as stream:
        json.dump(answer, stream)
    if "error" in answer or is_held(GRACE_S):
        leave_now(0)
