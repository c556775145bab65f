"""Parts of the link that are late while a file says so: `LATE_FILE` holds the name of a part and milliseconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium

from offpolicy.envs.toy import PointMass
from offpolicy.remote.collector import RemoteCollector
from offpolicy.remote.feeds import ReplayFeed


def be_late(part: str) -> None:
    late, _, ms = Path(os.environ["LATE_FILE"]).read_text().partition(" ")
    if late == part:
        time.sleep(float(ms) / 1000.0)


def late(part: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        be_late(part)
        return real(*args)

    return call


def slow_down_copies() -> None:
    """In the process of the link."""
    ReplayFeed.take = late("copy", ReplayFeed.take)  # type: ignore[method-assign]


class LatePoint(PointMass):
    """A point mass that makes the remote collector of its process late, too."""

    def __init__(self) -> None:
        super().__init__()
        RemoteCollector._new_rows = late("serialise", RemoteCollector._new_rows)  # type: ignore[method-assign]

    def step(self, action: Any) -> Any:
        be_late("remote_busy")
        return super().step(action)


gymnasium.register("LatePoint-v0", LatePoint, max_episode_steps=100)
