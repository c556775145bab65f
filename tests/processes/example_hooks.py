"""Hooks for `eval.hook` and `collect.hook`, in a module that imports quickly; and an episode to call them with."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np

from offpolicy.collect.post import Episode


def episode(index: int = 0, length: int = 3) -> Episode:
    obs = np.arange(2.0 * (length + 1), dtype=np.float32).reshape(-1, 2)
    action = -np.arange(float(length), dtype=np.float32)[:, None]
    numbers = (70, 6, 1.5, length, float("nan"), 0.25, True, False)
    return Episode(index, *numbers, obs, action, np.arange(float(length)))


def nothing_much(given: Episode) -> None:
    assert given.obs.shape[0] == given.length + 1 == len(given.reward) + 1


def take_100_ms(given: Episode) -> None:
    time.sleep(0.1)


def fail_if_odd(given: Episode) -> None:
    if given.index % 2:
        raise ValueError(f"episode {given.index} is odd")


def die_at_1(given: Episode) -> None:
    if given.index == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def hang(given: Episode) -> None:
    print("hanging", flush=True)
    threading.Event().wait()
