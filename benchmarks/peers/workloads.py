"""The races: one algorithm and one number of environments each, with those who compete in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.peers.settings import Settings


class Workload(NamedTuple):
    """A race."""

    title: str
    settings: Settings
    contenders: tuple[str, ...]


ONE = ("ours", "overlap", "tuned", "sb3-1", "sb3-2", "sbx", "control-1", "control-2", "by-hand-2")
MANY = ("ours", "overlap", "auto", "tuned", "sb3-1", "sb3-2", "sbx", "control-2", "by-hand-2")
WORKLOADS: Mapping[str, Workload] = {
    "sac-1": Workload("SAC, one environment, one update per env step", Settings.of("sac"), ONE),
    "td3-1": Workload("TD3, one environment, one update per env step", Settings.of("td3"), ONE),
    "sac-16": Workload("SAC, 16 environments, one update per vector step", Settings.of("sac", 16), MANY),
    "sac-64": Workload("SAC, 64 environments, one update per vector step", Settings.of("sac", 64), MANY),
}
