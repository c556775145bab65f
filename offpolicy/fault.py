"""Fault points: `fault.hit("<site>")` stands before a write, rename, send, wait or start; a test may fail it there.

Off, a point is a call that compares a global with None.
"""

from __future__ import annotations

import os
from collections.abc import Callable

PLAN_VARIABLE = "OFFPOLICY_FAULT_PLAN"  # path of a Python file with `plan_of(role, rank)`, which returns a `plan`
plan: Callable[[str], object] | None = None


def hit(site: str) -> None:
    """Calls the plan of this process, if there is one, which may end it, wait, or raise `OSError`."""
    if plan is not None:
        plan(site)


def arm(role: str, rank: int = 0) -> None:
    """Loads the plan of this process, if the environment names one."""
    global plan
    if path := os.environ.get(PLAN_VARIABLE):
        import runpy

        plan = runpy.run_path(path)["plan_of"](role, rank)
