"""Environment workers in their own processes: a deadline on every answer, a name for every death, no orphans."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from gymnasium import Env
from gymnasium.vector import AsyncVectorEnv

from offpolicy.children import describe_exit, die_with_parent, leave_signals
from offpolicy.descendants import HELD_S
from offpolicy.envs.worker_context import worker_context
from offpolicy.errors import EnvFailure, EnvWorkerKilled, HangError
from offpolicy.machine import LONGEST_WAIT_S
from offpolicy.start import drop_refused

OPEN_GRACE_S = 30.0  # extra time of the first reset, which also imports and constructs the environment
CLOSE_GRACE_S = 5.0  # time between asking a worker to close and killing it
REAP_S = 2.0  # longest time between the end of file of a worker's pipe and its exit


def tie_to_parent(parent_pid: int) -> None:
    """Makes this worker exit with its collector and ignore the run's signals, which are the supervisor's.

    What it cannot print is dropped, as in the collector, in which nothing is done here.
    """
    if os.getpid() != parent_pid:
        drop_refused("stdout", "stderr")
        leave_signals()
        die_with_parent(parent_pid)


class Workers:
    """Gymnasium's `AsyncVectorEnv` on spawned workers, whose calls end in time or raise.

    A worker that died raises `EnvFailure` with its index, or `EnvWorkerKilled` if by a signal; one that is silent for
    longer than `timeout_s` raises `HangError`. After either, only `close` may be called. Create it on the main thread:
    Linux ties the workers' lives to the thread that started them.
    """

    def __init__(self, factories: Sequence[Callable[[], Env[Any, Any]]], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._is_first = True
        self._vec: AsyncVectorEnv[Any, Any] | None = None
        try:
            # No daemons: those may not start processes of their own, as a simulator may. `tie_to_parent` ends them.
            self._vec = AsyncVectorEnv(factories, context=worker_context(), copy=False, daemon=False)
        except (EOFError, ConnectionError) as error:
            raise EnvFailure("an environment worker died while it started; its own message is on stderr") from error

    def reset(self, *, seed: list[int | None], options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Returns observations [N, O] and infos. Raises `EnvFailure`, `HangError`."""
        grace_s = OPEN_GRACE_S if self._is_first else 0.0
        self._is_first = False
        vec = self._running()
        obs, infos = self._answer(
            lambda: vec.reset_async(seed=seed, options=options), vec.reset_wait, self._timeout_s + grace_s
        )
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Returns Gymnasium's five results. Raises `EnvFailure`, `HangError`."""
        vec = self._running()
        obs, reward, terminated, truncated, infos = self._answer(
            lambda: vec.step_async(actions), vec.step_wait, self._timeout_s
        )
        return obs, reward, terminated, truncated, infos

    def close(self) -> None:
        """Ends the workers: asks, waits `CLOSE_GRACE_S`, kills. Works in any state; a second call does nothing.

        What the kernel holds, although it was killed, is given up after `HELD_S`.
        """
        vec, self._vec = self._vec, None
        if vec is None:
            return
        pipes = [pipe for pipe in vec.parent_pipes if pipe is not None]  # Gymnasium has closed those of failed workers
        for pipe in pipes:
            try:
                pipe.send(("close", None))
            except OSError:  # its worker has exited already
                continue
        grace_s, held_s = CLOSE_GRACE_S, HELD_S
        for process in vec.processes:
            process.join(grace_s)
            if process.is_alive():
                process.kill()
                process.join(held_s)
                held_s = 0.0 if process.is_alive() else held_s  # one after the other would take minutes
                grace_s = 0.0  # the other workers have had the same time
        for pipe in pipes:
            pipe.close()
        vec.error_queue.close()
        vec.closed = True  # its own close would wait for workers that cannot answer

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers, in the order of the environments."""
        return tuple(process.pid or 0 for process in self._running().processes)

    def _running(self) -> AsyncVectorEnv[Any, Any]:
        if self._vec is None:
            raise EnvFailure("the environment workers are closed")
        return self._vec

    def _answer(self, ask: Callable[[], None], wait: Callable[[float], Any], timeout_s: float) -> Any:
        timeout_s = min(timeout_s, LONGEST_WAIT_S)
        try:
            ask()
            return wait(timeout_s)
        except multiprocessing.TimeoutError as error:
            vec = self._running()
            if multiprocessing.connection.wait([process.sentinel for process in vec.processes], 0.0):
                raise self._death() from error
            silent = [index for index, pipe in enumerate(vec.parent_pipes) if not pipe.poll()]
            names = ", ".join(_name(index, vec.processes) for index in silent) or "an environment"
            raise HangError(f"{names} gave no answer for {timeout_s:g} s (env.step_timeout_s)") from error
        except (EOFError, OSError) as error:
            raise self._death() from error

    def _death(self) -> EnvFailure:
        processes = self._running().processes
        ended = multiprocessing.connection.wait([process.sentinel for process in processes], REAP_S)
        dead = [index for index, process in enumerate(processes) if process.sentinel in ended]
        for index in dead:
            processes[index].join()  # its files are closed, its exit code comes a moment later
        ends = ", ".join(f"{_name(index, processes)} {describe_exit(processes[index].exitcode)}" for index in dead)
        if any((processes[index].exitcode or 0) < 0 for index in dead):
            return EnvWorkerKilled(ends)
        return EnvFailure(ends or "an environment worker closed its pipe")


def _name(index: int, processes: Sequence[BaseProcess]) -> str:
    return f"env {index} of {len(processes)} (pid {processes[index].pid})"
