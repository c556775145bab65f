"""Index and addresses of a host of a run. Torch-free; the children receive it as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from offpolicy.errors import ConfigError

LOOPBACK, LOOPBACK_HOST = "lo", "127.0.0.1"


@dataclass(frozen=True, slots=True)
class HostInfo:
    """Host `index` of `num_hosts`. `store_port` is 0 on a single host, whose ranks use a socket of the supervisor.

    `is_store_ours`: global rank 0 must open the store itself; else the launcher has done so.
    """

    index: int = 0
    num_hosts: int = 1
    store_host: str = LOOPBACK_HOST
    store_port: int = 0
    is_store_ours: bool = True
    attempt: int = 0  # restarts of this host's processes by the launcher so far
    job: str = ""  # the launcher's name for the run
    launch_id: str = ""  # unique name of this start of the run, the same on all hosts

    @classmethod
    def of_launcher(cls, environ: Mapping[str, str] | None = None) -> HostInfo:
        """Returns what `torchrun` has put into the environment, or a single host. Raises `ConfigError`."""
        env = os.environ if environ is None else environ
        if "TORCHELASTIC_RUN_ID" not in env:
            return cls()
        per_host = int(env["LOCAL_WORLD_SIZE"])
        if per_host != 1:
            raise ConfigError(
                f"torchrun --nproc-per-node: got {per_host}, allowed 1: offpolicy runs one supervisor per host, which"
                f" starts the learner ranks itself; write runner.world_size={per_host} for {per_host} ranks on each"
            )
        return cls(
            index=int(env["RANK"]),
            num_hosts=int(env["WORLD_SIZE"]),
            store_host=env["MASTER_ADDR"],
            store_port=int(env["MASTER_PORT"]),
            is_store_ours=env.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
            attempt=int(env.get("TORCHELASTIC_RESTART_COUNT", "0")),
            job=env["TORCHELASTIC_RUN_ID"],
        )

    @property
    def is_alone(self) -> bool:
        """True if there is no other host."""
        return self.num_hosts == 1


def require_interface(name: str | None, host: HostInfo) -> None:
    """Raises `ConfigError` unless the interface exists; across hosts it must be named: none public is used unasked."""
    names = sorted(os.listdir("/sys/class/net"))
    if name is not None and name not in names:
        raise ConfigError(f"runner.interface: got {name!r}, allowed one of {', '.join(names)}")
    if name is None and not host.is_alone:
        raise ConfigError(
            f"runner.interface: got null, but {host.num_hosts} hosts train together: name the network interface that"
            f" joins them, one of {', '.join(n for n in names if n != LOOPBACK)}"
        )
