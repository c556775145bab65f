"""The rendezvous of several hosts before anything starts: they compare configurations and agree where to start.

It runs in a child process, because it needs torch's store and a supervisor has no torch.
"""

from __future__ import annotations

import json
import select
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from offpolicy.distributed.host_info import HostInfo
from offpolicy.errors import ConfigError, HangError, OffPolicyError
from offpolicy.processes.fork_server import ChildError, ChildTimeout, call_in_child
from offpolicy.timing.clock import Stopwatch

POLL_S = 0.1
GRACE_S = 8.0  # beyond the deadline that the child keeps itself: to import torch, and to name the missing hosts


@dataclass(frozen=True, slots=True)
class Proposal:
    """Configuration and checkpoints of one host."""

    config: dict[str, Any]  # Any: nested configuration values, without those that may differ between hosts
    run_dir: str
    steps: list[int]  # env steps of its usable checkpoints
    found: list[str] = field(default_factory=list)  # checkpoints of any host in that directory, on this host's disk
    is_restart: bool = False  # by the launcher that started it before


@dataclass(frozen=True, slots=True)
class RendezvousResult:
    """The start of the run that all hosts have agreed on."""

    run_dir: str  # of host 0
    start_step: int  # the checkpoint to resume from; 0: none
    launch_id: str = ""  # unique name of this start of the run


def agree(host: HostInfo, proposal: Proposal, timeout_s: float) -> RendezvousResult:
    """Agrees with the other hosts. Raises `HangError` if they do not all come, `ConfigError` if they differ."""
    request = {"host": asdict(host), "proposal": asdict(proposal), "timeout_s": timeout_s}
    target = "offpolicy.distributed.rendezvous:exchange_proposals"
    try:
        answer = call_in_child(target, request, timeout_s=timeout_s + GRACE_S)
    except (ChildError, OffPolicyError) as error:
        # torch waits for ever for a store that is frozen or cut off
        reason = "their store does not answer" if isinstance(error, ChildTimeout) else str(error)
        raise HangError(
            f"host {host.index} of {host.num_hosts} waited {timeout_s:g} s (runner.timeout_s) at"
            f" {host.store_host}:{host.store_port} for the others: {reason}"
        ) from error
    proposals = [Proposal(**each) for each in answer["proposals"]]
    return replace(merge_proposals(proposals), launch_id=answer["launch_id"])


def merge_proposals(proposals: Sequence[Proposal]) -> RendezvousResult:
    """Returns the common start of all hosts' proposals, by host. Raises `ConfigError` naming the differences.

    It is the newest checkpoint of host 0, which holds the networks, that every other host with checkpoints has a part
    of; where no step is common, that of host 0. Where host 0 has none but another host has, the run is refused: the
    launcher may have numbered the hosts in another order.
    """
    first = proposals[0]
    problems = [
        f"{key}: host 0 has {first.config.get(key)!r}, host {host} {proposal.config.get(key)!r};"
        " give all hosts the same command"
        for host, proposal in enumerate(proposals)
        for key in sorted(first.config.keys() | proposal.config.keys())
        if proposal.config.get(key) != first.config.get(key)
    ]
    if not first.steps:
        problems += [
            f"run_dir: host 0 has no checkpoint, but on host {host} there is {path}; give host 0 the networks'"
            " checkpoint, or choose another run_dir"
            for host, proposal in enumerate(proposals)
            for path in proposal.found
            if not proposal.is_restart
        ]
    if problems:
        raise ConfigError(problems)
    elsewhere = [set(proposal.steps) for proposal in proposals[1:] if proposal.steps]
    common = [step for step in first.steps if all(step in steps for steps in elsewhere)]
    return RendezvousResult(first.run_dir, max(common or first.steps, default=0))


def exchange(
    store: Any, host: HostInfo, timeout_s: float, proposal: dict[str, Any]
) -> tuple[str, list[dict[str, Any]]]:  # Any: a torch store, and JSON
    """Returns the launch's id and the proposals by host. Raises `HangError` when time is up.

    The launcher keeps its store when it restarts the processes, with the values of earlier attempts. So each process
    has a unique id; host 0 publishes a launch with the ids in the store, and another one whenever an id has changed,
    until every host has joined it.
    """
    hosts, watch, own = range(host.num_hosts), Stopwatch(), uuid.uuid4().hex

    def are_set(key: str) -> bool:
        return bool(store.check([f"{key}/{index}" for index in hosts]))

    def pause() -> None:
        if watch.elapsed_s() > timeout_s:
            raise HangError(f"found hosts {[index for index in hosts if store.check([f'process/{index}'])]} only")
        select.select([], [], [], POLL_S)

    store.set(f"proposal/{own}", json.dumps(proposal))
    store.set(f"process/{host.index}", own)
    launch_id, processes = "", list[str]()
    while not (launch_id and are_set(f"joined/{launch_id}")):
        if host.index == 0 and are_set("process"):
            present = [store.get(f"process/{index}").decode() for index in hosts]
            if present != processes:
                store.set("launch", json.dumps([uuid.uuid4().hex, *present]))
        newest_id, *newest = json.loads(store.get("launch")) if store.check(["launch"]) else [""]
        if newest_id != launch_id and own in newest:
            launch_id, processes = newest_id, newest
            store.set(f"joined/{launch_id}/{host.index}", "")
        pause()
    proposals = [json.loads(store.get(f"proposal/{process}")) for process in processes]
    store.set(f"done/{launch_id}/{host.index}", "")
    while host.index == 0 and not are_set(f"done/{launch_id}"):  # the store may live in its process
        pause()
    return launch_id, proposals


def exchange_proposals(request: dict[str, Any]) -> dict[str, Any]:
    """Exchanges proposals through the launcher's store; called in a child process."""
    # Here, because the supervisor imports this module too and has no torch.
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # exported without saying so

    from offpolicy.distributed.process_group import open_store

    host, timeout_s = HostInfo(**request["host"]), request["timeout_s"]
    store = open_store(host, host.index, listen_fd=None, port=host.store_port, timeout_s=timeout_s)
    launch_id, proposals = exchange(PrefixStore("agreement", store), host, timeout_s, request["proposal"])
    return {"launch_id": launch_id, "proposals": proposals}
