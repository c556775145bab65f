from __future__ import annotations

import pytest

from offpolicy.distributed import host_info as module
from offpolicy.distributed.host_info import HostInfo, require_interface
from offpolicy.errors import ConfigError

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "night-7",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "LOCAL_WORLD_SIZE": "1",
    "WORLD_SIZE": "3",
    "RANK": "1",
    "MASTER_ADDR": "10.0.0.5",
    "MASTER_PORT": "29400",
}


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


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert HostInfo.of_launcher() == HostInfo.of_launcher(TORCHRUN)


@pytest.mark.parametrize("agent", [{}, {"TORCHELASTIC_USE_AGENT_STORE": "False"}])
def test_the_store_is_ours_where_the_launcher_opens_none(agent: dict[str, str]) -> None:
    others = {name: value for name, value in TORCHRUN.items() if name != "TORCHELASTIC_USE_AGENT_STORE"}
    assert HostInfo.of_launcher(others | agent).is_store_ours


def test_a_launcher_that_never_restarted_is_at_its_first_attempt() -> None:
    first = {name: value for name, value in TORCHRUN.items() if name != "TORCHELASTIC_RESTART_COUNT"}
    assert HostInfo.of_launcher(first).attempt == 0


def test_several_supervisors_per_host_are_refused_with_what_to_write_instead() -> None:
    with pytest.raises(ConfigError, match=r"--nproc-per-node: got 2, allowed 1: .*runner\.world_size=2"):
        HostInfo.of_launcher(TORCHRUN | {"LOCAL_WORLD_SIZE": "2"})


def test_a_place_survives_its_trip_as_json_data() -> None:
    host = HostInfo.of_launcher(TORCHRUN)
    assert HostInfo(**host.to_json()) == host


@pytest.fixture
def _interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "listdir", {"/sys/class/net": ["lo", "ib0", "eth0"]}.__getitem__)


@pytest.mark.usefixtures("_interfaces")
def test_an_interface_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"^runner\.interface: got 'eth7', allowed one of eth0, ib0, lo$"):
        require_interface("eth7", HostInfo())


@pytest.mark.usefixtures("_interfaces")
def test_across_hosts_the_interface_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"^runner\.interface: got null, but 3 hosts .* one of eth0, ib0$"):
        require_interface(None, HostInfo(num_hosts=3))


@pytest.mark.usefixtures("_interfaces")
@pytest.mark.parametrize(("name", "num_hosts"), [(None, 1), ("lo", 1), ("eth0", 1), ("ib0", 3)])
def test_a_fit_interface_is_accepted(name: str | None, num_hosts: int) -> None:
    require_interface(name, HostInfo(num_hosts=num_hosts))
