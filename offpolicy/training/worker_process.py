"""How every process of a run that uses torch begins: its time account, its threads, its place in the scheduler."""

from __future__ import annotations

import contextlib
import os
from enum import StrEnum

import torch

from offpolicy.timing.clock import process_birth_ns
from offpolicy.timing.ledger import TimeAccount, make_ledger, trace_names
from offpolicy.timing.trace_writer import open_track
from offpolicy.training.worker_spec import WorkerSpec


def start_worker(
    spec: WorkerSpec, role: str, index: int, phases: type[StrEnum], *, threads: int, is_background: bool = False
) -> TimeAccount:
    """Returns the ledger of the process `role` `index`, open since its birth, once torch is set up.

    Denormals are flushed in every process: a policy acts bit for bit alike wherever it is loaded. A background process
    must not take the learner's core before the learner lets go of it, although the learner has woken it: its step would
    be charged to the learner's sync_coordination.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    if is_background:
        with contextlib.suppress(OSError):  # a sandbox may refuse it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    trace = open_track(spec.trace_dir, f"{role}-{index}", trace_names(phases), f"{role} {index}")
    return make_ledger(phases, is_enabled=spec.cfg.timing.enabled, opened_ns=process_birth_ns(), trace=trace)
