"""Environment workers in their own processes: a deadline on every answer, a name for every death, no orphans."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.env_adapter import EnvAdapter
from offpolicy.envs.spaces import Codec
from offpolicy.errors import EnvFailure, EnvWorkerKilled, HangError
from offpolicy.machine import LONGEST_WAIT_S
from offpolicy.output import drop_refused
from offpolicy.processes.child import die_with_parent
from offpolicy.processes.children import HELD_S, describe_exit
from offpolicy.processes.signals import leave_signals, signals_blocked
from offpolicy.timing.clock import Stopwatch

OPEN_GRACE_S = 30.0  # extra time of the first reset, which also imports and constructs the environment
CLOSE_GRACE_S = 5.0  # time between asking a worker to close and killing it
REAP_S = 2.0  # longest time between the end of file of a worker's pipe and its exit


class Workers:
    """`num_envs` environments, each in a process, stepped together with Gymnasium's NEXT_STEP autoreset.

    A worker that died raises `EnvFailure` with its index, or `EnvWorkerKilled` if by a signal; one that is silent for
    longer than `cfg.step_timeout_s` raises `HangError`. After either, only `close` may be called. Create it on the main
    thread: Linux ties the workers' lives to the thread that started them.
    """

    def __init__(self, cfg: EnvConfig, num_envs: int, codec: Codec) -> None:
        self._timeout_s, self._grace_s = cfg.step_timeout_s, OPEN_GRACE_S
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        context = multiprocessing.get_context("spawn")  # not forked: this process has threads (torch), and their locks
        for index in range(num_envs):
            pipe, theirs = context.Pipe()
            # No daemon: that may not start processes, as a simulator may. `_serve` ends with this process all the same.
            process = context.Process(target=_serve, args=(theirs, os.getpid(), cfg, index, num_envs, codec))
            with theirs, signals_blocked():  # one that is sent to all processes of the run would end it
                process.start()
            self._pipes.append(pipe)
            self._processes.append(process)

    def reset(self, *, seed: list[int | None], options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Returns observations [N, O] and infos. Raises `EnvFailure`, `HangError`."""
        obs, _, _, _, infos = self._answers([("reset", one) for one in seed], self._timeout_s + self._grace_s)
        self._grace_s = 0.0
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Returns Gymnasium's five results. Raises `EnvFailure`, `HangError`."""
        obs, reward, terminated, truncated, infos = self._answers([("step", one) for one in actions], self._timeout_s)
        return obs, reward, terminated, truncated, infos

    def close(self) -> None:
        """Ends the workers: asks, waits `CLOSE_GRACE_S`, kills. Works in any state; a second call does nothing."""
        for pipe in self._pipes:
            pipe.close()
        end_processes(self._processes)
        self._pipes, self._processes = [], []

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers, in the order of the environments."""
        return tuple(process.pid or 0 for process in self._processes)

    def _answers(self, requests: Sequence[tuple[str, Any]], timeout_s: float) -> Any:
        """Returns Gymnasium's five results, of a step or a reset, once all workers have answered."""
        watch = Stopwatch()
        answers: list[Any] = []  # Any: the five results of one environment
        try:
            for pipe, request in zip(self._pipes, requests, strict=True):
                pipe.send(request)
            for pipe in self._pipes:
                if not pipe.poll(min(max(timeout_s - watch.elapsed_s(), 0.0), LONGEST_WAIT_S)):
                    raise self._silence(len(answers), timeout_s)
                answers.append(pipe.recv())
        except (EOFError, OSError) as error:
            raise self._death() from error
        obs, reward, terminated, truncated, infos = zip(*answers, strict=True)
        joined: dict[str, Any] = {}
        for key in {key for info in infos for key in info}:
            joined[key] = np.array([info.get(key) for info in infos], object)
            joined[f"_{key}"] = np.array([key in info for info in infos])
        return np.stack(obs), np.array(reward, np.float64), np.array(terminated), np.array(truncated), joined

    def _silence(self, num_answers: int, timeout_s: float) -> EnvFailure | HangError:
        if wait([process.sentinel for process in self._processes], 0.0):
            return self._death()
        silent = [index for index, pipe in enumerate(self._pipes) if index >= num_answers and not pipe.poll()]
        names = ", ".join(map(self._name, silent)) or "an environment"
        return HangError(f"{names} gave no answer for {timeout_s:g} s (env.step_timeout_s)")

    def _death(self) -> EnvFailure:
        ended = wait([process.sentinel for process in self._processes], REAP_S)
        dead = [index for index, process in enumerate(self._processes) if process.sentinel in ended]
        for index in dead:
            self._processes[index].join()  # its files are closed, its exit code comes a moment later
        codes = [self._processes[index].exitcode for index in dead]
        ends = ", ".join(f"{self._name(index)} {describe_exit(code)}" for index, code in zip(dead, codes, strict=True))
        kind = EnvWorkerKilled if any((code or 0) < 0 for code in codes) else EnvFailure
        return kind(ends or "an environment worker closed its pipe")

    def _name(self, index: int) -> str:
        return f"env {index} of {len(self._processes)} (pid {self._processes[index].pid})"


def end_processes(processes: Sequence[BaseProcess]) -> None:
    """Waits `CLOSE_GRACE_S` for all processes together, then kills. One that the kernel holds is given up."""
    grace_s, held_s = CLOSE_GRACE_S, HELD_S
    for process in processes:
        process.join(grace_s)
        if process.is_alive():
            process.kill()
            process.join(held_s)
            held_s = 0.0 if process.is_alive() else held_s  # one after the other would take minutes
            grace_s = 0.0  # the other processes have had the same time


def _serve(pipe: Connection, parent_pid: int, cfg: EnvConfig, index: int, num_envs: int, codec: Codec) -> None:
    """Runs in a worker: answers until the pipe is closed. The first reset, which has a deadline, makes the environment.

    It ends with its collector and ignores the run's signals, which are the supervisor's. What it cannot print is
    dropped, as in the collector.
    """
    drop_refused("stdout", "stderr")
    leave_signals()
    die_with_parent(parent_pid)
    with contextlib.closing(EnvAdapter(cfg, index, num_envs, codec)) as env, contextlib.suppress(EOFError, OSError):
        was_done = False
        while True:
            call, argument = pipe.recv()
            if call == "reset" or was_done:
                obs, info = env.reset(seed=argument if call == "reset" else None)
                answer = obs, 0.0, False, False, info
            else:
                answer = env.step(argument)
            was_done = answer[2] or answer[3]
            pipe.send(answer)
