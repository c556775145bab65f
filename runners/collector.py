"""The collector process, the same for every topology: assembled here, run by `offpolicy/collect/collector.py`."""

from __future__ import annotations

from offpolicy.processes.child import ChildContext
from offpolicy.timing.phases import CollectorPhase
from offpolicy.training.collecting import counters_of, open_collector
from offpolicy.training.run_memory import control_page
from offpolicy.training.worker import WorkerSpec, start_worker


def main(child: ChildContext) -> None:
    """Collects until the supervisor lets it go."""
    job, index = WorkerSpec.of(child), child.index
    threads = job.plan.collector_threads
    ledger = start_worker(job, "collector", index, CollectorPhase, threads=threads, is_background=True)
    control = control_page(child.block("control"), job.cfg)
    collector = open_collector(child, job, control, ledger, index=index)
    child.send("hello", **counters_of(collector))
    collector.run()
