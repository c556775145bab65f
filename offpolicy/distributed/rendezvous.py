"""What the supervisors of several hosts agree on before anything starts.

Run as `python -P -m offpolicy.distributed.rendezvous`.

A process of its own, because it needs torch's store and a supervisor has no torch. It reads a `Proposal` as JSON from
stdin and writes the proposals of all hosts to stdout.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from offpolicy.children import die_with_parent
from offpolicy.distributed.host_info import HostInfo
from offpolicy.errors import ConfigError, HangError
from offpolicy.timing.clock import Stopwatch

POLL_S = 0.1
GRACE_S = 8.0  # beyond the deadline that the process keeps itself: to import torch, and to say who was missing


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one host brings."""

    config: dict[str, Any]  # Any: nested configuration values, without what may differ between hosts
    run_dir: str
    steps: list[int]  # env steps of its usable checkpoints
    found: list[str] = field(default_factory=list)  # checkpoints of whatever host in that directory, on its disk
    is_restart: bool = False  # by the launcher that started it before


@dataclass(frozen=True, slots=True)
class RendezvousResult:
    """What all hosts go by."""

    run_dir: str  # of host 0
    start_step: int  # the checkpoint to go on from; 0: none
    launch_id: str = ""  # a name for this start of the run that no other start has


def agree(place: HostInfo, proposal: Proposal, timeout_s: float) -> RendezvousResult:
    """Settle with the other hosts. Raises `HangError` if they do not all come, `ConfigError` if they differ."""
    request = {
        "place": place.to_json(), "proposal": asdict(proposal), "timeout_s": timeout_s, "supervisor_pid": os.getpid(),
    }  # fmt: skip
    command = [sys.executable, "-P", "-m", "offpolicy.distributed.rendezvous"]
    try:
        answer = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, check=False, timeout=timeout_s + GRACE_S
        )
    except subprocess.TimeoutExpired as error:  # torch waits for ever for a store that is frozen or cut off
        raise _hang(place, timeout_s, "their store does not answer") from error
    if answer.returncode != 0:
        raise _hang(place, timeout_s, (answer.stderr.strip().splitlines() or ["no reason given"])[-1])
    result = json.loads(answer.stdout)
    return replace(settle([Proposal(**each) for each in result["proposals"]]), launch_id=result["talk"])


def _hang(place: HostInfo, timeout_s: float, reason: str) -> HangError:
    return HangError(
        f"host {place.host} of {place.num_hosts} waited {timeout_s:g} s (runner.timeout_s) at"
        f" {place.store_host}:{place.store_port} for the others: {reason}"
    )


def settle(proposals: Sequence[Proposal]) -> RendezvousResult:
    """The common ground of all hosts' proposals, by host. Raises `ConfigError` naming what differs.

    The newest checkpoint of host 0, which holds the networks, that every other host has a part of; a host without any
    checkpoint, such as a replaced one, has no say. Where no step is common, that of host 0. Where host 0 has none but
    somebody has, the run is not begun anew without a word: the launcher may have numbered the hosts in another order.
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


class ProposalExchange:
    """One host's side of the exchange of proposals, over a store that may remember earlier attempts of the same run.

    The launcher keeps its store when it restarts the processes, and counts restarts differently on every host. So each
    process says a name that nobody has used before; host 0 calls the names it hears, again whenever one has changed,
    until every host has answered that very call. What a process of an earlier attempt said is in no such call.
    """

    def __init__(self, store: Any, place: HostInfo, timeout_s: float) -> None:  # Any: a torch store
        self._store, self._place = store, place
        self._watch, self._timeout_s = Stopwatch(), timeout_s
        self._name = uuid.uuid4().hex

    def exchange(self, proposal: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
        """The name of the talk and the proposals by host. Raises `HangError` when time is up."""
        self._store.set(f"proposal/{self._name}", json.dumps(proposal))
        self._store.set(f"name/{self._place.host}", self._name)
        call = self._convene() if self._place.host == 0 else self._answer()
        names = self._read(f"call/{call}").split()
        return call, [json.loads(self._read(f"proposal/{name}")) for name in names]

    @property
    def _hosts(self) -> range:
        return range(self._place.num_hosts)

    def _convene(self) -> str:
        """Call the names heard, again whenever one has changed, until all have answered."""
        called, call = "", ""
        while not (call and self._is_answered(call)):
            if self._all_set([f"name/{host}" for host in self._hosts]):
                names = " ".join(self._read(f"name/{host}") for host in self._hosts)
                if names != called:
                    called, call = names, uuid.uuid4().hex
                    self._store.set(f"call/{call}", names)
                    self._store.set("call", call)
                    self._store.set(f"answer/{call}/0", "here")
            self._pause()
        return call

    def _answer(self) -> str:
        """Answer every call of this process's name, until all have answered the last one."""
        call = ""
        while not (call and self._is_answered(call)):
            if self._all_set(["call"]):
                newest = self._read("call")
                if newest != call and self._name in self._read(f"call/{newest}").split():
                    call = newest
                    self._store.set(f"answer/{call}/{self._place.host}", "here")
            self._pause()
        return call

    def _is_answered(self, call: str) -> bool:
        return self._all_set([f"answer/{call}/{host}" for host in self._hosts])

    def leave(self, call: str) -> None:
        """Say that this host has read. Host 0, in whose process the store may live, leaves last."""
        self._store.set(f"done/{call}/{self._place.host}", "read")
        while self._place.host == 0 and not self._all_set([f"done/{call}/{host}" for host in self._hosts]):
            self._pause()

    def _all_set(self, keys: list[str]) -> bool:
        return bool(self._store.check(keys))

    def _read(self, key: str) -> str:
        return str(self._store.get(key).decode())

    def _pause(self) -> None:
        if self._watch.elapsed_s() > self._timeout_s:
            heard = [host for host in range(self._place.num_hosts) if self._all_set([f"name/{host}"])]
            raise HangError(f"heard of hosts {heard} only")
        select.select([], [], [], POLL_S)


def main() -> None:
    """Exchange the proposals through the launcher's store."""
    request = json.load(sys.stdin)
    die_with_parent(request["supervisor_pid"])
    # Here, because the supervisor imports this module too and has no torch.
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # exported without saying so

    from offpolicy.distributed.process_group import open_store

    place, timeout_s = HostInfo(**request["place"]), request["timeout_s"]
    store = open_store(place, place.host, listen_fd=None, port=place.store_port, timeout_s=timeout_s)
    launch_id = ProposalExchange(PrefixStore("agreement", store), place, timeout_s)
    call, proposals = launch_id.exchange(request["proposal"])
    launch_id.leave(call)
    json.dump({"talk": call, "proposals": proposals}, sys.stdout)


if __name__ == "__main__":
    main()
