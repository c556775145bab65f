"""`eval.hook` and `collect.hook`: a user's function, called with each finished episode in one worker process.

What it returns is ignored. A hook that raises, dies or does not return in time costs its own episode's work, which is
counted and reported once; the episode and its return count. At most `queue` episodes wait; beyond that the evaluation,
or the collector, waits in its phase `post_backpressure`.

Each episode travels as an anonymous file, whose descriptor is sent over a socket: no primitive that a killed worker
could leave locked, no message that is sent in parts, and nothing that remains when a process is killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from offpolicy import fault
from offpolicy.calls import ChildError, ChildTimeout, call_in_child
from offpolicy.children import describe_exit, signals_blocked
from offpolicy.collect.post import Episode, save_episode
from offpolicy.descendants import HELD_S
from offpolicy.errors import ConfigError
from offpolicy.timing.clock import Stopwatch

START_TIMEOUT_S = 60.0  # limit for the imports of the hook's module
GRACE_S = 1.0  # from closing the worker's socket to killing it
SLICE_S = 0.1  # longest wait between two calls of `should_stop`
MESSAGE_BYTES = 1 << 17  # limit of a message from the worker
# Not `-m`: the hook's module imports `post` too, and would see another `Episode` than that of `__main__`.
WORKER = "from offpolicy.collect.post import main; main()"
STOPPED = "stopped"  # error of an episode whose hook had not returned when the run was asked to stop

_LOG = logging.getLogger(__name__)


class Interval(NamedTuple):
    """A span of the machine's monotonic clock, in ns; all processes share that clock."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class HookConfig:
    """Which function the worker calls, and how far its caller may be ahead of it."""

    hook: str  # module:function
    queue: int  # episodes that may wait, besides the one being worked on
    timeout_s: float  # time without an answer after which the worker is killed
    key: str = "eval.hook"  # of the configuration


class HookResult(NamedTuple):
    """Outcome of one episode. `interval` is None if the hook did not run to its end; `error` is a traceback."""

    episode_index: int
    interval: Interval | None
    error: str | None


def check_hook(name: str, key: str = "eval.hook") -> None:
    """Raises `ConfigError` with the cause unless `name` is a function; its module is imported in a child process."""
    try:
        cause = call_in_child("offpolicy.collect.post:why_not_loadable", name, timeout_s=START_TIMEOUT_S)
    except ChildTimeout:
        cause = f"its module took longer than {START_TIMEOUT_S:g} s"
    except ChildError as error:
        cause = f"the process that imported its module {error.reason}"
    if cause is not None:
        raise ConfigError(f"{key}: got {name!r}, allowed module:function: {cause}")


class _WorkerDied(Exception):
    """The worker ended before it said whether it could load the hook."""


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    connection: socket.socket


class EpisodeHook:
    """Runs the hook in one worker, started by `open`, and again for the episode after one that killed it.

    `should_stop` is called in every wait, at least ten times a second; once it returns True, nothing is waited for and
    unfinished episodes are `STOPPED`. `on_done` gets every episode exactly once, during a call of a method. Create it
    on the main thread: Linux ties the worker's life to that thread.
    """

    def __init__(self, cfg: HookConfig, should_stop: Callable[[], bool], on_done: Callable[[HookResult], None]) -> None:
        self._cfg, self._should_stop, self._on_done = cfg, should_stop, on_done
        self._worker: _Worker | None = None
        self._in_flight: deque[int] = deque()
        self._watch = Stopwatch()
        self._last_answer_s = 0.0  # when the worker last answered, or got its first episode

    def open(self) -> None:
        """Starts the worker and waits until it has loaded the hook, or a stop.

        Raises `ConfigError` for a hook that is refused, or that takes longer than `START_TIMEOUT_S` to load. A worker
        that died meanwhile is no mistake of the configuration, which was checked: the log says so, and the worker is
        started again for the first episode.
        """
        try:
            self._start()
        except _WorkerDied as died:
            _LOG.warning("%s; it is started again for the first episode", died)

    def _start(self) -> None:
        """Raises `ConfigError` as `open` does, and `_WorkerDied`."""
        self._spawn()
        watch, answer = Stopwatch(), None
        refused = f"{self._cfg.key}: {self._cfg.hook!r} could not be loaded"
        try:
            while answer is None and not self._should_stop():
                answer = self._read()
                if answer is None and watch.elapsed_s() > START_TIMEOUT_S:
                    self._end()
                    raise ConfigError(f"{refused}: its module took longer than {START_TIMEOUT_S:g} s; see train.log")
        except EOFError:
            self._end()
            raise _WorkerDied(f"{refused}: its worker died; see train.log") from None
        if answer is None:
            self._end()
        elif answer["error"] is not None:
            self._end(GRACE_S)
            raise ConfigError(f"{self._cfg.key}: got {self._cfg.hook!r}, allowed module:function: {answer['error']}")

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        arguments = [self._cfg.hook, str(theirs.fileno()), str(os.getpid())]
        try:
            with theirs, signals_blocked():
                fault.hit("post.spawn")
                process = subprocess.Popen(
                    [sys.executable, "-P", "-c", WORKER, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # what the hook prints goes where its tracebacks go
                    pass_fds=(theirs.fileno(),),
                )
        except OSError as error:
            ours.close()
            raise ConfigError(f"{self._cfg.key}: its worker could not be started: {error}") from error
        self._worker = _Worker(process, ours)

    def submit(self, episode: Episode) -> None:
        """Hands an episode over, once there is room in the queue. A worker that died meanwhile is replaced."""
        self.poll()
        while self._is_full and not self._should_stop():
            self._receive()
        error = STOPPED
        try:
            if self._worker is None and not self._is_full:
                self._start()
        except (ConfigError, _WorkerDied) as refused:  # it was there when the run began
            error = str(refused)
        if self._worker is None or self._is_full:
            self._on_done(HookResult(episode.index, None, error))
            return
        if not self._in_flight:
            self._last_answer_s = self._watch.elapsed_s()
        self._in_flight.append(episode.index)
        self._send(episode)

    def poll(self) -> None:
        """Takes the results that are there."""
        while self._worker is not None and self._receive(0.0):
            pass

    def drain(self) -> None:
        """Waits until every episode handed over is done; if stopped, takes only the results that are there."""
        while self._in_flight and not self._should_stop():
            self._receive()
        self._abandon()

    def close(self) -> None:
        """Ends the worker; one that is working on an episode is killed. A second call does nothing."""
        self._abandon()
        self._end(GRACE_S)

    @property
    def _is_full(self) -> bool:
        return len(self._in_flight) > self._cfg.queue

    def _send(self, episode: Episode) -> None:
        with open(os.memfd_create("offpolicy-episode"), "w+b") as file:
            save_episode(episode, file)
            while self._worker is not None:
                if self._should_stop():
                    self._abandon()
                    return
                try:
                    fault.hit("post.send")
                    socket.send_fds(self._worker.connection, [b"episode"], [file.fileno()])
                    return
                except BlockingIOError:
                    self._receive()
                except OSError:
                    self._fail_worker(GRACE_S)

    def _receive(self, timeout_s: float = SLICE_S) -> bool:
        """Takes a result that comes in time, True if one did; gives up a dead or silent worker."""
        try:
            message = self._read(timeout_s)
        except EOFError:
            self._fail_worker(GRACE_S)
            return False
        if message is not None:
            self._last_answer_s = self._watch.elapsed_s()
            self._in_flight.remove(message["index"])
            interval = Interval(message["start_ns"], message["end_ns"])
            self._on_done(HookResult(message["index"], interval, message["error"]))
        elif self._in_flight and self._watch.elapsed_s() - self._last_answer_s > self._cfg.timeout_s:
            self._fail_worker(0.0, f"gave no answer for {self._cfg.timeout_s:g} s (env.step_timeout_s)")
        return message is not None

    def _read(self, timeout_s: float = SLICE_S) -> dict[str, Any] | None:  # Any: JSON
        """Returns the next message, None if none comes in time.

        Raises `EOFError` at the end of the worker, even if a process that the hook started holds the socket.
        """
        assert self._worker is not None
        process, connection = self._worker
        has_ended = process.poll() is not None  # first: what it sent before its end is in the socket by now
        fault.hit("post.wait")
        readable, _, _ = select.select([connection], [], [], 0.0 if has_ended else timeout_s)
        if readable:
            try:
                message = connection.recv(MESSAGE_BYTES)
            except ConnectionResetError:  # it ended without reading all episodes; its last results come next
                return None
            if message:
                found: dict[str, Any] = json.loads(message)
                return found
        if readable or has_ended:
            raise EOFError
        return None

    def _abandon(self) -> None:
        """Takes the results that are there, kills the worker if it is not done, and stops the rest."""
        while self._in_flight and self._receive(0.0):
            pass
        if self._in_flight:
            self._end()
        self._finish_all(STOPPED)

    def _fail_worker(self, grace_s: float, reason: str = "") -> None:
        """Ends a worker that is gone, or must go: what it worked on has failed, and so has what waited behind it."""
        code = self._end(grace_s)
        self._finish_all(f"the worker of the hook {reason or describe_exit(code)}")

    def _finish_all(self, error: str) -> None:
        while self._in_flight:
            self._on_done(HookResult(self._in_flight.popleft(), None, error))

    def _end(self, grace_s: float = 0.0) -> int:
        """Closes the socket, waits `grace_s` for the worker's end, then kills it; returns its exit code."""
        worker, self._worker = self._worker, None
        if worker is None:
            return 0
        worker.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return worker.process.wait(grace_s)
        worker.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it
            return worker.process.wait(HELD_S)
        return -signal.SIGKILL
