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
from offpolicy.envs.env_adapter import EnvAdapter, VectorAdapter
from offpolicy.envs.spaces import Codec
from offpolicy.errors import EnvFailure, EnvWorkerKilled, HangError
from offpolicy.machine import LONGEST_WAIT_S
from offpolicy.output import drop_refused
from offpolicy.processes.child import die_with_parent
from offpolicy.processes.children import HELD_S, describe_exit
from offpolicy.processes.signals import leave_signals, signals_blocked
from offpolicy.timing.clock import Stopwatch
from offpolicy.types import Bool, Float32, StepOutcome

OPEN_GRACE_S = 30.0  # extra time of the first reset, which also imports and constructs the environment
CLOSE_GRACE_S = 5.0  # time between asking a worker to close and killing it
DTYPES = (np.float32, np.float64, np.bool_, np.bool_, np.bool_, np.float32, np.float32)  # of a `StepOutcome`
REAP_S = 2.0  # longest time between the end of file of a worker's pipe and its exit


class Workers(VectorAdapter):
    """`num_envs` environments, each in a process.

    A worker that died raises `EnvFailure` with its index, or `EnvWorkerKilled` if by a signal; one that is silent for
    longer than `cfg.step_timeout_s` raises `HangError`. After either, only `close` may be called. Create it on the main
    thread: Linux ties the workers' lives to the thread that started them.
    """

    can_reset_some = False

    def __init__(self, cfg: EnvConfig, codec: Codec, num_envs: int) -> None:
        super().__init__(cfg, codec, num_envs)
        self._pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []
        self.renew()

    def renew(self) -> None:
        """Ends the workers, and starts new ones, which construct their environments at the first reset."""
        self.close()
        self._grace_s = OPEN_GRACE_S
        context = multiprocessing.get_context("spawn")  # not forked: this process has threads (torch), and their locks
        for index in range(self.num_envs):
            pipe, theirs = context.Pipe()
            # No daemon: that may not start processes, as a simulator may. `_serve` ends with this process all the same.
            arguments = (theirs, os.getpid(), self.cfg, index, self.num_envs, self.codec)
            process = context.Process(target=_serve, args=arguments)
            with theirs, signals_blocked():  # one that is sent to all processes of the run would end it
                process.start()
            self._pipes.append(pipe)
            self.processes.append(process)

    def begin(self, seeds: Sequence[int], where: Bool) -> Float32:
        """Starts an episode everywhere; only in all environments. Returns obs [N, O]."""
        obs: Float32 = np.stack(self._answers(seeds, self.cfg.step_timeout_s + self._grace_s))
        self._grace_s = 0.0
        return obs

    def step(self, action: Float32) -> StepOutcome:
        """One vector step. action: [N, A] in [-1, 1], or the numbers of discrete ones; clipped to the bounds."""
        rows = self._answers(np.split(action, self.num_envs), self.cfg.step_timeout_s)
        columns = zip(zip(*rows, strict=True), DTYPES, strict=True)
        return StepOutcome._make([*(np.array(column, dtype) for column, dtype in columns), None, {}])

    def close(self) -> None:
        """Ends the workers: asks, waits `CLOSE_GRACE_S`, kills; one that the kernel holds is given up. Always works."""
        for pipe in self._pipes:
            pipe.close()
        grace_s, held_s = CLOSE_GRACE_S, HELD_S
        for process in self.processes:
            process.join(grace_s)
            if process.is_alive():
                process.kill()
                process.join(held_s)
                held_s = 0.0 if process.is_alive() else held_s  # one after the other would take minutes
                grace_s = 0.0  # the other processes have had the same time
        self._pipes, self.processes = [], []

    def _answers(self, requests: Sequence[Any], timeout_s: float) -> list[Any]:
        """Returns the results of a reset (the requests are seeds) or a step (actions [1, A]) of all workers."""
        watch = Stopwatch()
        answers: list[Any] = []  # Any: an obs [O] or a row of a `StepOutcome`
        try:
            for pipe, request in zip(self._pipes, requests, strict=True):
                pipe.send(request)
            for pipe in self._pipes:
                if not pipe.poll(min(max(timeout_s - watch.elapsed_s(), 0.0), LONGEST_WAIT_S)):
                    raise self._silence(len(answers), timeout_s)
                answers.append(pipe.recv())
                if isinstance(answers[-1], str):
                    raise EnvFailure(answers[-1])
        except (EOFError, OSError) as error:
            raise self._death() from error
        return answers

    def _silence(self, num_answers: int, timeout_s: float) -> EnvFailure | HangError:
        if wait([process.sentinel for process in self.processes], 0.0):
            return self._death()
        silent = [index for index, pipe in enumerate(self._pipes) if index >= num_answers and not pipe.poll()]
        names = ", ".join(map(self._name, silent)) or "an environment"
        return HangError(f"{names} gave no answer for {timeout_s:g} s (env.step_timeout_s)")

    def _death(self) -> EnvFailure:
        ended = wait([process.sentinel for process in self.processes], REAP_S)
        dead = [index for index, process in enumerate(self.processes) if process.sentinel in ended]
        for index in dead:
            self.processes[index].join()  # its files are closed, its exit code comes a moment later
        codes = [self.processes[index].exitcode for index in dead]
        ends = ", ".join(f"{self._name(index)} {describe_exit(code)}" for index, code in zip(dead, codes, strict=True))
        kind = EnvWorkerKilled if any((code or 0) < 0 for code in codes) else EnvFailure
        return kind(ends or "an environment worker closed its pipe")

    def _name(self, index: int) -> str:
        return f"env {index} of {len(self.processes)} (pid {self.processes[index].pid})"


def _serve(pipe: Connection, parent_pid: int, cfg: EnvConfig, index: int, num_envs: int, codec: Codec) -> None:
    """Runs in a worker: answers until the pipe is closed. The first reset, which has a deadline, makes the environment.

    It ends with its collector, ignores the run's signals and drops what it cannot print, as the collector does.
    """
    drop_refused("stdout", "stderr")
    leave_signals()
    die_with_parent(parent_pid)
    env = EnvAdapter(cfg, codec, 1, index=index, total=num_envs)
    with contextlib.closing(env), contextlib.suppress(EOFError, OSError):
        while True:
            request = pipe.recv()
            answer: Any  # an obs [O], a row of a `StepOutcome`, or the text of a failure
            try:
                if isinstance(request, int):
                    answer = env.begin([request], np.array([True]))[0]
                else:  # numbers, not arrays of one, which take longer to send
                    obs, *rest = env.step(request)
                    answer = obs[0], *(np.asarray(field).item() for field in rest[: len(DTYPES) - 1])
            except EnvFailure as failure:
                answer = str(failure)
            pipe.send(answer)
