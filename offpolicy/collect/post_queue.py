"""The way of finished episodes to the worker that runs the hook, and of its answers back."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from offpolicy.collect.post import Episode, Interval, encode
from offpolicy.errors import ConfigError
from offpolicy.processes.signals import signals_held
from offpolicy.timing.clock import Stopwatch

START_TIMEOUT_S = 60.0  # for the imports of the hook's module
GRACE_S = 1.0  # from the end of its pipe to its own
SLICE_S = 0.1  # how long a wait may take before it is asked whether to stop
STOPPED = "stopped"  # the error of an episode whose hook nobody waits for any more


@dataclass(frozen=True, slots=True)
class PostConfig:
    """What the worker runs and how far one may be ahead of it."""

    hook: str  # module:function
    queue: int  # episodes that may wait, besides the one that it works on
    timeout_s: float  # a hook that is silent for longer is given up, and its worker with it


class Done(NamedTuple):
    """What became of one episode. `interval` is None where no hook was run to its end; `error` is a traceback."""

    episode_index: int
    interval: Interval | None
    error: str | None


class PostQueue:
    """One worker, started when it is first needed, and again for the episode after one that it died of.

    `should_stop` is asked in every wait, at least ten times a second; once it says so, nothing is waited for, and what
    is not done is `STOPPED`. `on_done` hears of every episode exactly once. Make it on the main thread: Linux ties the
    worker's life to that.
    """

    def __init__(self, cfg: PostConfig, should_stop: Callable[[], bool], on_done: Callable[[Done], None]) -> None:
        self._cfg, self._should_stop, self._on_done = cfg, should_stop, on_done
        self._worker: subprocess.Popen[bytes] | None = None
        self._in_flight: deque[int] = deque()
        self._buffered = b""
        self._watch = Stopwatch()
        self._heard_s = 0.0  # when the worker last gave a sign of life, or got its first work

    def open(self) -> None:
        """Start the worker and wait until it has the hook. Raises `ConfigError` if there is no such function."""
        error = self._start()
        if error is not None:
            raise ConfigError(error)

    def submit(self, episode: Episode) -> None:
        """Hand an episode over, once there is room in the queue. A worker that died meanwhile is replaced."""
        if self._worker is not None:
            self._listen(0.0)
        while len(self._in_flight) > self._cfg.queue and not self._should_stop():
            self._listen()
        is_full = len(self._in_flight) > self._cfg.queue
        error = None if is_full else self._start()
        if self._worker is None or is_full:  # told to stop, or the hook cannot be loaded any more
            self._on_done(Done(episode.index, None, error or STOPPED))
            return
        if not self._in_flight:
            self._heard_s = self._watch.elapsed_s()
        self._in_flight.append(episode.index)
        self._send(encode(episode))

    def drain(self) -> None:
        """Wait until every episode handed over is done with; told to stop, take only what is done already."""
        while self._in_flight and not self._should_stop():
            self._listen()
        self._abandon()

    def close(self) -> None:
        """End the worker; one that still works on an episode is killed. Safe to call twice."""
        self._abandon()
        if self._worker is None:
            return
        assert self._worker.stdin is not None
        with contextlib.suppress(OSError):
            self._worker.stdin.close()
        self._end(GRACE_S)

    def _start(self) -> str | None:
        """Start the worker, unless there is one; why it has no hook. Told to stop, there is no worker and no error."""
        if self._worker is not None:
            return None
        command = [sys.executable, "-P", "-m", "offpolicy.collect.post_worker", self._cfg.hook, str(os.getpid())]
        try:
            with signals_held():
                self._worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        except OSError as error:
            return f"eval.hook: its worker could not be started: {error}"
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        return self._first_word()

    # -- the pipes ----------------------------------------------------------------------------------------------------

    @property
    def _stdin(self) -> int:
        assert self._worker is not None
        assert self._worker.stdin is not None
        return self._worker.stdin.fileno()

    @property
    def _stdout(self) -> int:
        assert self._worker is not None
        assert self._worker.stdout is not None
        return self._worker.stdout.fileno()

    def _first_word(self) -> str | None:
        """Why the worker has no hook, and has ended; None if it has one, or when told to stop, which ends it too."""
        watch = Stopwatch()
        while not self._should_stop():
            lines = self._read(SLICE_S)
            if lines is None or watch.elapsed_s() > START_TIMEOUT_S:
                self._end(0.0)
                how = "its worker died" if lines is None else f"its module took longer than {START_TIMEOUT_S:g} s"
                return f"eval.hook: {self._cfg.hook!r} could not be loaded: {how}; see train.log"
            if lines:
                return self._refusal(lines[0])
        self._end(0.0)
        return None

    def _refusal(self, told: Mapping[str, Any]) -> str | None:  # Any: JSON
        if told["error"] is None:
            return None
        self._end(GRACE_S)
        cause = told["error"].strip().splitlines()[-1]
        return f"eval.hook: got {self._cfg.hook!r}, allowed module:function: {cause}"

    def _send(self, data: bytes) -> None:
        """Write it all; the answers are read meanwhile, so that neither side waits for the other."""
        rest = memoryview(data)
        while rest and self._worker is not None:
            if self._should_stop():
                self._abandon()
                return
            _, writable, _ = select.select([], [self._stdin], [], SLICE_S)
            if not writable:
                self._listen(0.0)
                continue
            try:
                rest = rest[os.write(self._stdin, rest) :]
            except BrokenPipeError:
                self._lose()

    def _listen(self, timeout_s: float = SLICE_S) -> None:
        """Take the answers that come within a moment; give a dead or silent worker up."""
        answers = self._read(timeout_s) if self._worker is not None else None
        if answers is None:
            self._lose()
            return
        for answer in answers:
            self._heard_s = self._watch.elapsed_s()
            self._in_flight.remove(answer["index"])
            interval = Interval(answer["start_ns"], answer["end_ns"])
            self._on_done(Done(answer["index"], interval, answer["error"]))
        if self._in_flight and self._watch.elapsed_s() - self._heard_s > self._cfg.timeout_s:
            self._lose(0.0, f"gave no answer for {self._cfg.timeout_s:g} s (env.step_timeout_s)")

    def _read(self, timeout_s: float) -> list[dict[str, Any]] | None:  # Any: JSON
        """The lines that have come; None at the end of the worker, even if a process of the hook's holds the pipe."""
        assert self._worker is not None
        has_ended = self._worker.poll() is not None  # asked first: what it said before is in the pipe by now
        readable, _, _ = select.select([self._stdout], [], [], 0.0 if has_ended else timeout_s)
        if not readable:
            return None if has_ended else []
        data = os.read(self._stdout, 65536)
        if not data:
            return None
        *lines, self._buffered = (self._buffered + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _abandon(self) -> None:
        """Nobody waits any more: what is done is taken, and the worker ends in the middle of the rest."""
        if self._in_flight:
            self._listen(0.0)
        if self._in_flight:
            self._end(0.0)
        while self._in_flight:
            self._on_done(Done(self._in_flight.popleft(), None, STOPPED))

    def _lose(self, grace_s: float = GRACE_S, how: str = "") -> None:
        """The worker has gone, or must: what it worked on has failed, and so has what waited behind it."""
        code = self._end(grace_s)
        told = how or (f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}")
        while self._in_flight:
            self._on_done(Done(self._in_flight.popleft(), None, f"the worker of the hook {told}"))

    def _end(self, grace_s: float) -> int:
        """Wait for the worker's end, kill it after `grace_s`, reap it; its exit code."""
        worker, self._worker, self._buffered = self._worker, None, b""
        if worker is None:
            return 0
        try:
            code = worker.wait(grace_s)
        except subprocess.TimeoutExpired:
            worker.kill()
            code = worker.wait()
        for stream in (worker.stdin, worker.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        return code
