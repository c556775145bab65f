"""Updates whose threads have a core each, where there are two of both (docs/adr/0043-bound-threads.md).

The kernel may leave both threads of an update on one core for several milliseconds while the other core idles. They
then run in turns. With more than two threads nothing is bound: libgomp ends the threads that a product does not need
and starts them again later, on the cores of the main thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from offpolicy.protocols import Learner

BOUND_THREADS = 2

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class BoundLearner:
    """A learner whose two threads stay on different cores in its updates, where it may use two cores.

    OpenMP's thread stays on its core between updates, too. The main thread does not: what it does there, and the
    threads and processes that it starts there, may use both cores. Where the kernel refuses to bind threads, or torch
    uses another library than libgomp, updates run as they would without this class.
    """

    def __init__(self, learner: Learner, *, may_bind: bool = True) -> None:
        """Without `may_bind` nothing is bound: other learners of this host use the same cores, or a GPU computes."""
        self._learner, self._may_bind = learner, may_bind
        self._cpus: Collection[int] = ()  # of this process, before a thread was bound
        self._own_cpus: Collection[int] = ()  # of the main thread in an update; empty: nothing is bound

    def update(self, batch: Any, /) -> None:  # Any: as in `Learner`
        """Makes the learner's update."""
        if self._own_cpus and os.sched_getaffinity(0) != self._cpus:  # somebody else has chosen cores for this process
            self.use_threads(torch.get_num_threads())
        if not self._own_cpus:
            self._learner.update(batch)
            return
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self._own_cpus)
        try:
            self._learner.update(batch)
        finally:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._cpus)

    def use_threads(self, threads: int) -> None:
        """Makes torch use so many threads, and binds them where they are two on two cores."""
        torch.set_num_threads(threads)
        self.release()
        self._cpus = os.sched_getaffinity(0)
        if self._may_bind and threads == len(self._cpus) == BOUND_THREADS:
            cores = [{cpu} for cpu in sorted(self._cpus)]
            self._own_cpus = cores[0]
            if not bind_threads(cores):
                self.release()

    def release(self) -> None:
        """Lets OpenMP's thread run on all cores of this process again."""
        if self._own_cpus:
            self._own_cpus = ()
            bind_threads([os.sched_getaffinity(0)] * BOUND_THREADS)


def bind_threads(cpus: Sequence[Collection[int]]) -> bool:
    """Binds OpenMP's threads, one for each element of `cpus`, to the cores in it, but not the thread that calls this.

    Returns whether all of them could be bound, the calling thread included.
    """
    before, bound = os.sched_getaffinity(0), set[int]()

    def bind(number: int) -> None:
        with contextlib.suppress(OSError):  # a sandbox refuses it, or a core was taken from this process
            os.sched_setaffinity(0, cpus[number])
            bound.add(number)

    run_in_threads(len(cpus), bind)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, before)
    return bound == set(range(len(cpus)))


def run_in_threads(threads: int, function: Callable[[int], None]) -> None:
    """Calls `function` in each of OpenMP's threads, with its number; the calling thread has 0.

    Does nothing where no libgomp is loaded.
    """
    path = libgomp()
    if path is None:
        return
    library = ctypes.CDLL(path)
    library.GOMP_parallel(_CALLBACK(lambda _: function(library.omp_get_thread_num())), None, threads, 0)


def libgomp(maps: Path = Path("/proc/self/maps"), torch_directory: Path = Path(torch.__file__).parent) -> str | None:
    """Returns the file of the libgomp that torch uses: the one that its wheel brings, or else the first one loaded."""
    try:
        files = [line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "libgomp" in line]
    except OSError:
        return None
    files.sort(key=lambda file: not Path(file).is_relative_to(torch_directory))
    return next((file for file in files if os.path.isfile(file)), None)
