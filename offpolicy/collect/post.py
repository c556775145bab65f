"""`eval.hook` and `collect.hook`: the episode that a hook receives, and the process that calls the hook.

The process is started with the arguments `<hook> <socket> <parent pid>`. Its first message says whether the hook could
be loaded. Then it answers each episode with the times at which the work began and ended, and the traceback of an
error.
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
from dataclasses import dataclass, fields
from typing import IO, Any

import numpy as np

from offpolicy import fault
from offpolicy.children import die_with_parent, leave_signals, show_name
from offpolicy.start import drop_refused
from offpolicy.timing.clock import MonotonicClock
from offpolicy.types import Float32, Float64

# Characters of an error that are sent, twelve bytes each at most: the last ones of a traceback, which name it.
ERROR_CHARACTERS = 8_192


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished episode of an evaluation or of a collector, as the hook receives it. L is its length."""

    index: int  # number in the evaluation, each of which begins with the same seeds; or in the collector's process
    env_steps: int  # env steps of the training at which the policy was evaluated, or at which the episode ended
    policy_version: int  # version of the published weights (the last one that acted); 0 for those of a checkpoint
    ep_return: float  # raw, undiscounted
    length: int
    success: float  # 1 or 0 if the environment says so, else NaN
    measure: float  # value of `env.measure`, else NaN
    terminated: bool
    truncated: bool
    obs: Float32  # [L + 1, O] flattened, the final one included
    action: Float32  # [L, A] in [-1, 1], or the numbers of discrete ones
    reward: Float64  # [L] raw


def save_episode(episode: Episode, file: IO[bytes]) -> None:
    """Writes an episode as an `.npz`."""
    arrays: dict[str, Any] = {field.name: getattr(episode, field.name) for field in fields(episode)}  # Any: see Episode
    np.savez(file, **arrays)
    file.flush()


def load_episode(file: IO[bytes]) -> Episode:
    """Returns the episode that `save_episode` wrote."""
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        return Episode(**{name: array if array.ndim else array.item() for name, array in arrays.items()})


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
        return f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
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
            error = traceback.format_exc().rstrip()[-ERROR_CHARACTERS:]
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
        fault.hit("post.send")
        connection.send(json.dumps(fields).encode())


def main() -> None:
    """Loads the hook, reports whether that worked, and serves until the socket is closed."""
    name, fd, parent_pid = sys.argv[1:]
    with socket.socket(fileno=int(fd)) as connection:
        connection.set_inheritable(False)
        drop_refused("stdout", "stderr")
        leave_signals()
        die_with_parent(int(parent_pid))
        show_name("op-post-0")
        fault.arm("post")
        sys.path.append(os.getcwd())  # where the hook's module may live; last, so that it shadows nothing
        error = why_not_loadable(name)
        _answer(connection, error=error)
        if error is None:
            serve(load_hook(name), connection)
