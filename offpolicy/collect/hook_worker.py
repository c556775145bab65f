"""The process that runs the hook: `python -P -m offpolicy.collect.hook_worker <hook> <socket> <parent pid>`.

Its first message says whether the hook could be loaded; then it answers each episode with when the work began and
ended, and the traceback if it failed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from offpolicy.children import die_with_parent
from offpolicy.collect.episode_hook import Episode, load_episode
from offpolicy.processes.child import ignore_terminal, take_name
from offpolicy.timing.clock import MonotonicClock

TRACEBACK_CHARACTERS = 1 << 14  # last characters of a traceback that are sent


def load_hook(name: str) -> Callable[[Episode], object]:
    """Returns the function `module:function`. Raises what its module raises; `TypeError` if it cannot be called."""
    module, _, function = name.partition(":")
    hook: Callable[[Episode], object] = getattr(importlib.import_module(module), function)
    if not callable(hook):
        raise TypeError(f"{function} is {type(hook).__name__}, which cannot be called")
    return hook


def why_not_loadable(name: str) -> str | None:
    """Returns why the hook cannot be used; None if it can."""
    try:
        load_hook(name)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return None


def serve(hook: Callable[[Episode], object], connection: socket.socket) -> None:
    """Calls the hook with every episode that comes, in order, and answers each."""
    waiting: queue.SimpleQueue[Episode | None] = queue.SimpleQueue()
    # A thread takes them in: the sender, which counts those in flight, must never wait for room in the socket.
    threading.Thread(target=_take_in, args=(connection, waiting), name="episodes", daemon=True).start()
    while (episode := waiting.get()) is not None:
        start_ns, error = MonotonicClock.now_ns(), None
        try:
            hook(episode)
        except (Exception, SystemExit):
            error = traceback.format_exc()[-TRACEBACK_CHARACTERS:]
        _answer(connection, index=episode.index, start_ns=start_ns, end_ns=MonotonicClock.now_ns(), error=error)


def _take_in(connection: socket.socket, waiting: queue.SimpleQueue[Episode | None]) -> None:
    while True:
        _, descriptors, _, _ = socket.recv_fds(connection, 16, 1)
        if not descriptors:  # the sender has closed its end
            waiting.put(None)
            return
        with open(descriptors[0], "rb") as file:
            waiting.put(load_episode(file))


def _answer(connection: socket.socket, **fields: Any) -> None:  # Any: JSON values
    with contextlib.suppress(ConnectionError):  # the evaluation has ended
        connection.send(json.dumps(fields).encode())


def main() -> None:
    """Loads the hook, reports whether that worked, and serves until the socket is closed."""
    name, fd, parent_pid = sys.argv[1:]
    with socket.socket(fileno=int(fd)) as connection:
        connection.set_inheritable(False)
        ignore_terminal()
        die_with_parent(int(parent_pid))
        take_name("post", 0)
        sys.path.append(os.getcwd())  # where the hook's module may live; last, so that it shadows nothing
        error = why_not_loadable(name)
        _answer(connection, error=error)
        if error is None:
            serve(load_hook(name), connection)


if __name__ == "__main__":
    main()
