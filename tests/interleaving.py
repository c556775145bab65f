"""Breaks into the product before each of its lines in turn: a process dies there, or another one works meanwhile."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import offpolicy

PRODUCT = str(Path(offpolicy.__file__).parent)
Call = Callable[[], object]


class DiedError(Exception):
    """The process that a test plays has died."""


def deaths() -> Iterator[Callable[[Call], None]]:
    """Yields functions `run(call)`, the n-th of which ends `call` before its n-th line of the product.

    After the one whose call comes to its end there is no other.
    """

    def die() -> None:
        raise DiedError

    for run in interruptions():

        def dying(call: Call, run: Callable[[Call, Call], Any] = run) -> None:
            with contextlib.suppress(DiedError):
                run(die, call)

        yield dying


def interruptions() -> Iterator[Callable[[Call, Call], Any]]:
    """Yields functions `run(act, call)`, the n-th of which runs `act` before the n-th line of `call`.

    They return what the call does. Lines of the product are counted, as they are run. After a call that has no such
    line there is no other.
    """
    number, is_over = 0, False

    def run(act: Call, call: Call) -> Any:
        left = number

        def trace(frame: FrameType, event: str, _: Any) -> Any:  # Any: a trace function returns itself or None
            nonlocal left, is_over
            if not frame.f_code.co_filename.startswith(PRODUCT):
                return None
            if event == "line":
                left -= 1
                if left == -1:
                    is_over = False
                    act()
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return call()
        finally:
            sys.settrace(before)

    while not is_over:
        is_over = True
        yield run
        number += 1
