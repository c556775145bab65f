"""Updates whose threads have a core each, where there are two of both (docs/adr/0045-updates.md).

The kernel may leave both threads of an update on one core for several milliseconds while the other core idles. They
then run in turns. With more than two threads nothing is bound: libgomp ends the threads that a product does not need
and starts them again later, on the cores of the main thread.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Set
from typing import Any

import torch

from offpolicy.protocols import Learner

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class BoundLearner:
    """A learner whose two threads stay on different cores in its updates, where it may use two cores.

    OpenMP's thread stays on its core between updates, too. The main thread does not: what it does there, and the
    threads and processes that it starts there, may use both cores. Where the kernel refuses to bind threads, or torch
    has another OpenMP than libgomp, updates run as they would without this class.
    """

    def __init__(self, learner: Learner, *, may_bind: bool = True) -> None:
        """Without `may_bind` nothing is bound: other learners of this host use the same cores, or a GPU computes."""
        self._learner, self._may_bind = learner, may_bind
        self._cpus: Set[int] = frozenset()  # of this process, when threads were bound last
        self._second: int | None = None  # OpenMP's thread, if it is bound

    def update(self, batch: Any, /) -> None:  # Any: as in `Learner`
        """Makes the learner's update."""
        if self._may_bind and os.sched_getaffinity(0) != self._cpus:  # somebody has chosen others
            self.use_threads(torch.get_num_threads())
        if self._second is None:
            self._learner.update(batch)
            return
        own = {min(self._cpus)}
        can_bind(0, own)
        try:
            self._learner.update(batch)
        finally:
            if os.sched_getaffinity(0) == own:  # nobody has chosen others meanwhile
                can_bind(0, self._cpus)

    def use_threads(self, threads: int) -> None:
        """Makes torch use so many threads, and binds them where they are two on two cores."""
        torch.set_num_threads(threads)
        self._cpus = os.sched_getaffinity(0)
        if self._second is not None:
            can_bind(self._second, self._cpus)
            self._second = None
        if self._may_bind and threads == len(self._cpus) == 2:
            second = second_thread()
            if second is not None and can_bind(second, {max(self._cpus)}):
                self._second = second


def can_bind(thread: int, cpus: Set[int]) -> bool:
    """Binds a thread to cores; False where a sandbox refuses it, a core is no longer this process's or it has ended."""
    try:
        os.sched_setaffinity(thread, cpus)
    except OSError:
        return False
    return True


def second_thread() -> int | None:
    """Returns the kernel's number of the thread that OpenMP has beside this one; None without libgomp."""
    found: dict[int, int] = {}
    run_in_threads(2, lambda number: found.__setitem__(number, threading.get_native_id()))
    return found.get(1)


def run_in_threads(threads: int, function: Callable[[int], None]) -> None:
    """Calls `function` in each of OpenMP's threads, with its number; the calling thread has 0."""
    library = ctypes.CDLL(None)  # torch loads its libraries for all to see
    if hasattr(library, "GOMP_parallel"):
        library.GOMP_parallel(_CALLBACK(lambda _: function(library.omp_get_thread_num())), None, threads, 0)
