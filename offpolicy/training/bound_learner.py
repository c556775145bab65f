"""Updates whose threads have a core each, where there are two of both (docs/adr/0045-updates.md).

The kernel may leave both threads of an update on one core for several milliseconds while the other core idles. They
then run in turns. With more than two threads nothing is bound: libgomp ends the threads that a product does not need
and starts them again later, on the cores of the main thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from offpolicy.protocols import Learner

BOUND_THREADS = 2

_OPENMP = re.compile(r"/lib(gomp|iomp5|omp)[^/]*$")
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
        self._cpus: Collection[int] = ()  # of this process, when threads were bound last
        self._own_cpus: Collection[int] = ()  # of the main thread in an update; empty: it is not bound
        self._second: int | None = None  # OpenMP's thread that was bound
        self._second_cpus: Collection[int] = ()

    def update(self, batch: Any, /) -> None:  # Any: as in `Learner`
        """Makes the learner's update."""
        if self._may_bind:
            self._follow()
        if not self._own_cpus:
            self._learner.update(batch)
            return
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self._own_cpus)
        try:
            self._learner.update(batch)
        finally:
            with contextlib.suppress(OSError):
                if os.sched_getaffinity(0) == self._own_cpus:  # nobody has chosen others meanwhile
                    os.sched_setaffinity(0, self._cpus)

    def use_threads(self, threads: int) -> None:
        """Makes torch use so many threads, and binds them where they are two on two cores."""
        torch.set_num_threads(threads)
        self._release()
        self._cpus = os.sched_getaffinity(0)
        if not self._may_bind or not threads == len(self._cpus) == BOUND_THREADS:
            return
        self._second = second_thread()
        first_cpu, second_cpu = sorted(self._cpus)
        if self._second is not None and can_bind(self._second, {second_cpu}):
            self._own_cpus, self._second_cpus = {first_cpu}, {second_cpu}

    def _release(self) -> None:
        """Lets OpenMP's thread run on all cores of this process again."""
        self._own_cpus = ()
        if self._second is not None:
            can_bind(self._second, os.sched_getaffinity(0))

    def _follow(self) -> None:
        """Binds again, or not at all, where somebody else has chosen the cores: of the main thread, or of all."""
        is_other = os.sched_getaffinity(0) != self._cpus
        if self._own_cpus and self._second is not None:
            with contextlib.suppress(OSError):
                chosen = os.sched_getaffinity(self._second)
                if chosen != self._second_cpus:
                    os.sched_setaffinity(0, chosen)
                    is_other = True
        if is_other:
            self.use_threads(torch.get_num_threads())


def can_bind(thread: int, cpus: Collection[int]) -> bool:
    """Binds a thread to cores; False where a sandbox refuses it, a core is no longer this process's or it has ended."""
    try:
        os.sched_setaffinity(thread, cpus)
    except OSError:
        return False
    return True


def second_thread() -> int | None:
    """Returns the kernel's number of the thread that OpenMP has beside this one; None where it is not known."""
    found: dict[int, int] = {}
    run_in_threads(BOUND_THREADS, lambda number: found.__setitem__(number, threading.get_native_id()))
    return found.get(1)


def run_in_threads(threads: int, function: Callable[[int], None]) -> None:
    """Calls `function` in each of OpenMP's threads, with its number; the calling thread has 0.

    Does nothing where the libgomp of torch is not known.
    """
    path = libgomp()
    if path is None:
        return
    library = ctypes.CDLL(path)
    library.GOMP_parallel(_CALLBACK(lambda _: function(library.omp_get_thread_num())), None, threads, 0)


def libgomp(maps: Path = Path("/proc/self/maps"), torch_directory: Path = Path(torch.__file__).parent) -> str | None:
    """Returns the file of the libgomp that torch uses: the one that its wheel brings, or the only OpenMP loaded."""
    try:
        files = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if _OPENMP.search(line)}
    except OSError:
        return None
    of_torch = {file for file in files if Path(file).is_relative_to(torch_directory.resolve())}
    found = [file for file in of_torch or files if "libgomp" in file and os.path.isfile(file)]
    return found[0] if len(found) == len(of_torch or files) == 1 else None
