from __future__ import annotations

import pytest

from offpolicy.distributed.host_info import HostInfo, require_interface
from offpolicy.errors import ConfigError

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "night-7", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_USE_AGENT_STORE": "True",
    "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "3", "RANK": "1", "MASTER_ADDR": "10.0.0.5", "MASTER_PORT": "29400",
}  # fmt: skip


def test_without_a_launcher_there_is_one_host_on_loopback() -> None:
    host = HostInfo.of_launcher({"RANK": "5", "WORLD_SIZE": "8"})  # of something else than torchrun
    assert host == HostInfo(
        index=0, num_hosts=1, store_host="127.0.0.1", store_port=0, is_store_ours=True, attempt=0, job=""
    )
    assert host.is_alone


def test_the_place_is_what_torchrun_says() -> None:
    host = HostInfo.of_launcher(TORCHRUN)
    assert host == HostInfo(
        index=1, num_hosts=3, store_host="10.0.0.5", store_port=29400, is_store_ours=False, attempt=2, job="night-7"
    )
    assert not host.is_alone


def test_the_store_is_ours_where_the_launcher_opens_none() -> None:
    assert HostInfo.of_launcher(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"}).is_store_ours


def test_several_supervisors_per_host_are_refused_with_what_to_write_instead() -> None:
    with pytest.raises(ConfigError, match=r"--nproc-per-node: got 2, allowed 1: .*runner\.world_size=2"):
        HostInfo.of_launcher(TORCHRUN | {"LOCAL_WORLD_SIZE": "2"})


def test_an_interface_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"^runner\.interface: got 'eth7', allowed one of .*lo"):
        require_interface("eth7", HostInfo())


def test_across_hosts_the_interface_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"^runner\.interface: got null, but 3 hosts "):
        require_interface(None, HostInfo(num_hosts=3))
    for name in (None, "lo"):
        require_interface(name, HostInfo())
