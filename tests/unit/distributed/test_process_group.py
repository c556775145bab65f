"""The process group without other processes: a group of one, and the store."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from offpolicy.children import is_held
from offpolicy.distributed import process_group
from offpolicy.distributed.host_info import HostInfo
from offpolicy.distributed.process_group import ProcessGroup, bind_interface, open_store
from offpolicy.errors import PeerLostError
from tests.fakes import DeviceSyncSpy


class FakeNccl:
    """A backend whose last collective ended with an error, or well."""

    def __init__(self, name: str) -> None:
        self.name = name

    def get_error(self) -> FakeNccl:
        return self


@pytest.mark.parametrize("name", ["TIMEOUT", "COMM_ERROR", "REMOTE_ERROR"])
def test_an_exchange_that_nccl_has_ended_is_a_lost_rank_and_not_a_result(
    solo: tuple[ProcessGroup, DeviceSyncSpy], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    group, _ = solo
    monkeypatch.setattr(group, "_nccl", FakeNccl("SUCCESS"))
    group.wait_for_device()
    monkeypatch.setattr(group, "_nccl", FakeNccl(name))
    with pytest.raises(PeerLostError, match=f"NCCL ended the exchange: {name}"):
        group.wait_for_device()
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "2"  # or the process would have been aborted
    assert os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0"  # or a lost rank would be noticed a minute late


def test_an_error_of_the_own_device_is_no_lost_rank(
    solo: tuple[ProcessGroup, DeviceSyncSpy], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    group, sync = solo
    monkeypatch.setattr(sync, "wait", fail)
    with pytest.raises(RuntimeError, match="^CUDA error: an illegal memory access"):
        group.wait_for_device()


def test_a_group_of_gpus_that_cannot_be_left_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL waits for its peers when a communicator is destroyed."""
    released = threading.Event()
    group = ProcessGroup(dist.HashStore(), 0, 1, backend="gloo", timeout_s=20.0, device_sync=DeviceSyncSpy())
    with monkeypatch.context() as patch:
        patch.setattr(process_group, "LEAVE_S", 0.1)
        patch.setattr(group, "uses_nccl", True)
        patch.setattr(dist, "destroy_process_group", released.wait)
        group.close()
    assert is_held()  # whatever it has ended with, the process leaves without taking that thread down
    released.set()
    dist.destroy_process_group()


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


def test_a_collective_that_gloo_cannot_end_is_a_lost_rank(
    solo: tuple[ProcessGroup, DeviceSyncSpy], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1. This may indicate a crash.\nmore")

    monkeypatch.setattr(dist, "all_reduce", fail)
    with pytest.raises(PeerLostError, match=r"\(Connection closed by peer \[127\.0\.0\.1\]:1\)$"):
        solo[0].gather(torch.zeros(1))


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
    with pytest.raises(PeerLostError, match=rf"^no store at 127\.0\.0\.1:{port} within 1 s .*while trying to connect"):
        open_store(HostInfo(), 1, listen_fd=None, port=port, timeout_s=1.0)


def test_a_store_whose_process_is_frozen_is_a_lost_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel accepts the connection, and nobody answers."""
    monkeypatch.setattr(process_group, "OPEN_GRACE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PeerLostError, match=r"within 0\.5 s .*: no answer$"):
            open_store(HostInfo(), 1, listen_fd=None, port=port, timeout_s=0.5)


@pytest.mark.parametrize(("name", "gloo", "nccl"), [(None, "lo", "=lo"), ("eth0", "eth0", "=eth0")])
def test_collectives_use_one_interface(monkeypatch: pytest.MonkeyPatch, name: str | None, gloo: str, nccl: str) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "public0")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "public0")
    bind_interface(name)
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == (gloo, nccl)
