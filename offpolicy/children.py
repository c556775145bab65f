"""No orphans: a process asks the kernel to be killed when its parent dies."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

ORPHANED = 71  # exit code of a process whose parent was dead already

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Be killed when `parent_pid`, which must be the parent, dies, however that happens (Linux).

    The kernel watches the parent's *thread* that started this process. Elsewhere than on Linux nothing happens.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the request; the signal will never come
        os._exit(ORPHANED)
