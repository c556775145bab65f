"""A look at `eval.hook` before anything starts: it can be imported, and called.

In a short-lived process of its own, `python -P -m offpolicy.collect.hook_probe <hook> <parent pid>`, so that a crash, a
hang or a heavy import of the user's module never touches the caller.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import IO

from offpolicy.children import die_with_parent
from offpolicy.collect.post_queue import START_TIMEOUT_S
from offpolicy.collect.post_worker import load
from offpolicy.errors import ConfigError


def check_hook(name: str) -> None:
    """Raises `ConfigError` with the cause unless `name` is a function that can be loaded."""
    # A file, not a pipe: a program that the module started may hold it open long after the answer.
    with tempfile.TemporaryFile("w+") as answer:
        end = _try_out(name, answer)
        answer.seek(0)
        told = answer.read()
    cause: str | None = json.loads(told) if told else end
    if cause is not None:
        raise ConfigError(f"eval.hook: got {name!r}, allowed module:function: {cause}")


def _try_out(name: str, answer: IO[str]) -> str:
    """Let a process write what it finds of the hook; how that process ended."""
    command = [sys.executable, "-P", "-m", "offpolicy.collect.hook_probe", name, str(os.getpid())]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=answer, stderr=subprocess.DEVNULL, start_new_session=True
    ) as child:
        try:
            code = child.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"its module took longer than {START_TIMEOUT_S:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # and whatever the module started
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    return f"the process that imported its module {how}"


def _cause(name: str) -> str | None:
    """Why the hook cannot be used; None if it can."""
    try:
        load(name)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    """The child: one answer on what was stdout, JSON text or null."""
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # what the module prints must not end up in the answer
    die_with_parent(int(sys.argv[2]))
    sys.path.append(os.getcwd())  # as in the worker that runs the hook
    told = json.dumps(_cause(sys.argv[1]))
    with os.fdopen(answer_fd, "w") as stream:
        stream.write(told)


if __name__ == "__main__":
    main()
