"""The process group without other processes: a group of one, and the store."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from offpolicy.distributed.host_info import HostInfo
from offpolicy.distributed.process_group import ProcessGroup, bind_interface, open_store
from offpolicy.errors import PeerLostError
from tests.fakes import DeviceSyncSpy


@pytest.fixture
def solo() -> Iterator[tuple[ProcessGroup, DeviceSyncSpy]]:
    sync = DeviceSyncSpy()
    group = ProcessGroup(dist.HashStore(), 0, 1, backend="gloo", timeout_s=20.0, device_sync=sync)
    yield group, sync
    group.close()


def test_collectives_of_one_rank_change_nothing(solo: tuple[ProcessGroup, DeviceSyncSpy]) -> None:
    group, sync = solo
    tensor = torch.tensor([1.0, 2.0])
    group.broadcast(tensor)
    group.sum_bucket(tensor)
    assert tensor.tolist() == [1.0, 2.0]
    assert group.gather(tensor).tolist() == [[1.0, 2.0]]
    assert (sync.count, group.uses_nccl) == (0, False)
    group.wait_for_device()
    assert sync.count == 1


def test_ranks_of_one_host_find_each_other_through_the_socket_of_the_supervisor() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    first = open_store(HostInfo(), 0, listen_fd=listener.detach(), port=port, timeout_s=20.0)
    second = open_store(HostInfo(), 1, listen_fd=None, port=port, timeout_s=20.0)
    first.set("key", "value")
    assert second.get("key") == b"value"


def test_the_store_of_several_hosts_listens_on_its_own_address_alone() -> None:
    host = HostInfo(num_hosts=2, store_host="127.0.0.1", store_port=0)
    store = open_store(host, 0, listen_fd=None, port=0, timeout_s=20.0)  # kept: it listens until it is collected
    port = store.underlying_store.port
    socket.create_connection(("127.0.0.1", port), 5.0).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 5.0)


def test_starts_of_a_run_do_not_see_each_others_keys() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    first = open_store(HostInfo(launch_id="a"), 0, listen_fd=listener.detach(), port=port, timeout_s=20.0)
    second = open_store(HostInfo(launch_id="b"), 1, listen_fd=None, port=port, timeout_s=20.0)
    first.set("key", "value")
    assert not second.check(["key"])


def test_a_store_that_does_not_exist_is_a_lost_peer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(
        PeerLostError, match=rf"^no store at 127\.0\.0\.1:{port} within 0\.3 s .*while trying to connect"
    ):
        open_store(HostInfo(), 1, listen_fd=None, port=port, timeout_s=0.3)


@pytest.mark.parametrize(("name", "gloo", "nccl"), [(None, "lo", "=lo"), ("eth0", "eth0", "=eth0")])
def test_collectives_use_one_interface(monkeypatch: pytest.MonkeyPatch, name: str | None, gloo: str, nccl: str) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "public0")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "public0")
    bind_interface(name)
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == (gloo, nccl)
