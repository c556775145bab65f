"""The process that runs the hook: `python -P -m offpolicy.collect.post_worker <hook> <parent pid>`.

Episodes come in on stdin; for each, one JSON line goes out on what was stdout when it started: when the work began and
ended, and the traceback if it failed. The first line says whether the hook could be loaded.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from offpolicy.children import die_with_parent
from offpolicy.collect.post import Episode, decode
from offpolicy.processes.child import ignore_terminal, take_name
from offpolicy.timing.clock import MonotonicClock

Hook = Callable[[Episode], Any]  # Any: what it returns is not looked at


def load(name: str) -> Hook:
    """The function called `module:function`. Raises whatever its module does; `TypeError` if it cannot be called."""
    module, _, function = name.partition(":")
    hook: Hook = getattr(importlib.import_module(module), function)
    if not callable(hook):
        raise TypeError(f"{function} is {type(hook).__name__}, which cannot be called")
    return hook


def serve(hook: Hook, source: BinaryIO, answers: BinaryIO) -> None:
    """Call the hook with every episode of `source`, in their order, and answer each."""
    waiting: queue.SimpleQueue[Episode | None] = queue.SimpleQueue()
    # A thread takes them in: the sender, which counts those in flight, must never wait for room in the pipe.
    threading.Thread(target=_take_in, args=(source, waiting), name="episodes", daemon=True).start()
    now_ns = MonotonicClock.now_ns
    while (episode := waiting.get()) is not None:
        start_ns = now_ns()
        error = _call(hook, episode)
        _answer(answers, index=episode.index, start_ns=start_ns, end_ns=now_ns(), error=error)


def _take_in(source: BinaryIO, waiting: queue.SimpleQueue[Episode | None]) -> None:
    episode = decode(source)
    while episode is not None:
        waiting.put(episode)
        episode = decode(source)
    waiting.put(None)


def _call(hook: Hook, episode: Episode) -> str | None:
    """The traceback, if it fails."""
    try:
        hook(episode)
    except (Exception, SystemExit):
        return traceback.format_exc()
    return None


def _answer(answers: BinaryIO, **fields: Any) -> None:
    answers.write(json.dumps(fields).encode() + b"\n")
    answers.flush()


def main() -> int:
    """Load the hook, say so, and serve until the episodes end."""
    ignore_terminal()
    die_with_parent(int(sys.argv[2]))
    take_name("post", 0)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the hook prints goes where its complaints go
    sys.path.append(os.getcwd())  # where the hook's module may live; last, so that it shadows nothing
    try:
        hook = load(sys.argv[1])
    except (Exception, SystemExit):
        _answer(answers, error=traceback.format_exc())
        return 1
    _answer(answers, error=None)
    serve(hook, sys.stdin.buffer, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
