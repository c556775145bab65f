from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from offpolicy.distributed.host_info import HostInfo
from offpolicy.distributed.rendezvous import Proposal, RendezvousResult, exchange, merge_proposals
from offpolicy.errors import ConfigError, HangError


def proposal(*steps: int, run_dir: str = "run", **config: Any) -> Proposal:
    return Proposal({"seed": 1, "algo.gamma": 0.99} | config, run_dir, list(steps))


def test_the_run_directory_is_that_of_host_0() -> None:
    assert merge_proposals([proposal(run_dir="a"), proposal(run_dir="b")]) == RendezvousResult("a", 0)


@pytest.mark.parametrize(
    ("steps", "start"),
    [
        (((100, 200, 300), (100, 200), (100, 200, 400)), 200),  # the newest that all have
        (((200,), (100, 200, 300)), 200),  # nothing newer than what host 0 has
        (((100, 200), (), (100,)), 100),  # a replaced host has no say
        (((), (100, 200)), 0),  # host 0 has the networks: without its checkpoint there is none
        (((), ()), 0),
    ],
)
def test_hosts_go_on_from_the_newest_common_checkpoint(steps: tuple[tuple[int, ...], ...], start: int) -> None:
    assert merge_proposals([proposal(*each) for each in steps]).start_step == start


def test_hosts_under_different_configurations_are_refused_with_key_and_both_values() -> None:
    hosts = [proposal(), proposal(seed=2), proposal(**{"algo.gamma": 0.9, "seed": 3})]
    with pytest.raises(ConfigError) as caught:
        merge_proposals(hosts)
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        "seed: host 0 has 1, host 1 2",
        "algo.gamma: host 0 has 0.99, host 2 0.9",
        "seed: host 0 has 1, host 2 3",
    ]


@pytest.mark.parametrize(("host", "words"), [(0, "host 0 has 2, host 1 None"), (1, "host 0 has None, host 1 2")])
def test_a_key_that_only_one_host_has_is_a_difference(host: int, words: str) -> None:
    hosts = [proposal(), proposal()]
    hosts[host] = proposal(**{"replay.slots": 2})
    with pytest.raises(ConfigError, match=rf"^replay\.slots: {words}"):
        merge_proposals(hosts)


def test_a_run_does_not_start_over_while_any_host_has_a_checkpoint() -> None:
    other = replace(proposal(100), found=["run/host-1/checkpoints/step-000000000100"])
    with pytest.raises(ConfigError, match=r"^run_dir: host 0 has no checkpoint, but on host 1 there is run/host-1"):
        merge_proposals([proposal(), other])
    assert (
        merge_proposals([proposal(), replace(other, is_restart=True)]).start_step == 0
    )  # of an attempt that saved nothing


class MemoryStore:
    """A store in this process; it remembers, as a launcher's does, the values of earlier attempts."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


def run_host(store: MemoryStore, host: int, delay_s: float, results: dict[int, Any]) -> None:
    threading.Event().wait(delay_s)
    results[host] = exchange(store, HostInfo(index=host, num_hosts=3, job="job"), 20.0, {"of": host})


def test_hosts_exchange_proposals_and_ignore_an_earlier_attempt() -> None:
    store = MemoryStore()
    for host in range(3):  # an earlier attempt, whose processes are gone
        store.set(f"process/{host}", f"old{host}")
        store.set(f"proposal/old{host}", '{"of": "old"}')
    store.set("launch", '["old", "old0", "old1", "old2"]')
    for host in range(3):
        store.set(f"joined/old/{host}", "")
    results: dict[int, Any] = {}
    threads = [
        threading.Thread(target=run_host, args=(store, host, 0.1 * host, results), daemon=True) for host in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert len({launch_id for launch_id, _ in results.values()}) == 1
    assert [proposals for _, proposals in results.values()] == [[{"of": host} for host in range(3)]] * 3


def test_a_host_that_does_not_come_ends_the_exchange() -> None:
    store = MemoryStore()
    with pytest.raises(HangError, match=r"found hosts \[0\] only"):
        exchange(store, HostInfo(num_hosts=2, job="job"), 0.1, {})
