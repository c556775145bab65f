"""The process of a learner's host that stands for the collectors of remote hosts (`collect.remote_hosts`)."""

from __future__ import annotations

import torch

from offpolicy.processes.child import ChildContext
from offpolicy.remote.cluster import joined
from offpolicy.remote.link import Link
from offpolicy.training.worker import WorkerSpec


def main(child: ChildContext) -> None:
    """Calls the remote collectors until the supervisor ends the run."""
    torch.set_num_threads(1)
    job = WorkerSpec.of(child)
    with joined(job) as cluster:
        Link(child, job, cluster).run()
