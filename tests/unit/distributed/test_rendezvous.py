from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from offpolicy.distributed.host_info import HostInfo
from offpolicy.distributed.rendezvous import Proposal, ProposalExchange, RendezvousResult, settle
from offpolicy.errors import ConfigError, HangError


def proposal(*steps: int, run_dir: str = "run", **config: Any) -> Proposal:
    return Proposal({"seed": 1, "algo.gamma": 0.99} | config, run_dir, list(steps))


def test_the_run_directory_is_that_of_host_0() -> None:
    assert settle([proposal(run_dir="a"), proposal(run_dir="b")]) == RendezvousResult("a", 0)


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
    assert settle([proposal(*each) for each in steps]).start_step == start


def test_checkpoints_without_a_common_step_go_on_from_that_of_host_0() -> None:
    assert settle([proposal(100, 300), proposal(200)]).start_step == 300


def test_hosts_under_different_configurations_are_refused_with_key_and_both_values() -> None:
    hosts = [proposal(), proposal(seed=2), proposal(**{"algo.gamma": 0.9, "seed": 3})]
    with pytest.raises(ConfigError) as caught:
        settle(hosts)
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
        settle(hosts)


def test_a_run_is_not_begun_anew_while_somebody_still_has_a_checkpoint() -> None:
    other = replace(proposal(100), found=["run/host-1/checkpoints/step-000000000100"])
    with pytest.raises(ConfigError, match=r"^run_dir: host 0 has no checkpoint, but on host 1 there is run/host-1"):
        settle([proposal(), other])
    assert settle([proposal(), replace(other, is_restart=True)]).start_step == 0  # of an attempt that saved nothing


class MemoryStore:
    """A store in this process; it remembers, as a launcher's does, what earlier attempts have said."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


def talk(store: MemoryStore, host: int, delay_s: float, heard: dict[int, Any]) -> None:
    threading.Event().wait(delay_s)
    talker = ProposalExchange(store, HostInfo(host=host, num_hosts=3, job="job"), timeout_s=20.0)
    call, proposals = talker.exchange({"of": host})
    talker.leave(call)
    heard[host] = call, proposals


@pytest.mark.parametrize("late", [0, 1, 2])
def test_hosts_hear_each_other_and_not_those_of_an_earlier_attempt(late: int) -> None:
    store = MemoryStore()
    for host in range(3):  # an earlier attempt, whose processes are gone
        store.set(f"name/{host}", f"old{host}")
        store.set(f"proposal/old{host}", '{"of": "old"}')
    store.set("call", "old")
    store.set("call/old", "old0 old1 old2")
    for host in range(3):
        store.set(f"answer/old/{host}", "here")
    heard: dict[int, Any] = {}
    threads = [
        threading.Thread(target=talk, args=(store, host, 0.5 * (host == late), heard), daemon=True) for host in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert len({call for call, _ in heard.values()}) == 1
    assert [proposals for _, proposals in heard.values()] == [[{"of": host} for host in range(3)]] * 3


def test_a_host_that_is_not_heard_ends_the_talk_and_is_named() -> None:
    store = MemoryStore()
    with pytest.raises(HangError, match=r"heard of hosts \[0\] only"):
        ProposalExchange(store, HostInfo(num_hosts=2, job="job"), timeout_s=0.3).exchange({})
