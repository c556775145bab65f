"""Environments that start programs of their own, evaluations in the way of a stop, machines that pause."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.mp, pytest.mark.slow]

SIMULATOR_ENV = """
import subprocess
import gymnasium
from gymnasium.envs.registration import register
from offpolicy.envs.toy import PointMass


class Simulated(PointMass):
    # A program beside the environment, as physics servers are: ended by terminate(), or forgotten.
    def __init__(self, forget=False, fail_at=None):
        super().__init__()
        self.simulator = subprocess.Popen(["sleep", "25"])
        with open("simulators.txt", "a") as sink:
            print(self.simulator.pid, file=sink)
        self.forget, self.fail_at, self.steps = forget, fail_at, 0

    def step(self, action):
        self.steps += 1
        if self.steps == self.fail_at:
            raise ValueError("the simulator is gone")
        return super().step(action)

    def close(self):
        if not self.forget:
            self.simulator.terminate()
            self.simulator.wait()


register("Simulated-v0", entry_point=Simulated, max_episode_steps=50)
"""


@pytest.fixture
def simulated(tmp_path: Path, traces: Any) -> Iterator[str]:
    (tmp_path / "simulated_env.py").write_text(SIMULATOR_ENV)
    yield "env.id=simulated_env:Simulated-v0"
    for pid in (tmp_path / "simulators.txt").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def test_a_simulator_that_is_ended_by_terminate_does_not_hold_up_the_run(start_run: Any, simulated: str) -> None:
    began = time.monotonic()
    code, _, err = start_run(simulated, "total_timesteps=300").finish()
    assert (code, err) == (0, "")
    assert time.monotonic() - began < 20.0


def test_a_forgotten_program_that_holds_the_pipes_does_not_hold_up_the_end(start_run: Any, simulated: str) -> None:
    run = start_run(simulated, "env.kwargs.forget=true", "env.kwargs.fail_at=250", "eval.episodes=0")
    began = time.monotonic()
    code = run.process.wait(timeout=24.0)  # not communicate(): the program may hold stdout
    for stream in (run.process.stdout, run.process.stderr):
        stream.close()
    assert code == 1
    assert time.monotonic() - began < 20.0
    assert run.summary()["status"] == "failed"


def test_ctrl_c_during_an_evaluation_is_honoured_at_once_and_saves(start_run: Any) -> None:
    slow = ("env.id=offpolicy.envs.toy:SlowStep-v0", "env.kwargs.step_ms=5", "eval.episodes=64", "eval.every=150")
    run = start_run(*slow, "total_timesteps=1000")
    run.wait_until(lambda: _evaluates(run), timeout_s=40)
    asked = time.monotonic()
    run.signal(signal.SIGINT)
    assert run.finish()[0] == 130
    assert time.monotonic() - asked < 6.0
    assert len(run.checkpoints()) == 1


def _evaluates(run: Any) -> bool:
    """Training stands still at the evaluation's step: the record before it is there."""
    records = run.records()
    if not records or records[-1]["env_steps"] < 100:
        return False
    time.sleep(1.0)
    return True


def test_a_pause_of_everything_is_not_a_hang(start_run: Any, traces: Any) -> None:
    run = start_run("total_timesteps=100000000", "replay.capacity=100000", "env.step_timeout_s=1")
    run.wait_for_updates()
    everybody = [run.process.pid, *(pid for pid in traces.processes() if pid != run.process.pid)]
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(12.0)
    for pid in everybody:
        os.kill(pid, signal.SIGCONT)
    time.sleep(2.0)
    assert run.process.poll() is None
    run.signal(signal.SIGINT)
    assert run.finish()[0] == 130
