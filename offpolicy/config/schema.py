"""The configuration of a run, checked as a whole, and the names that other modules import.

`RunConfig.from_mapping` turns a plain nested mapping into a checked `RunConfig` and reports every problem at once:
unknown keys with the nearest known one, wrong types, values out of range, impossible combinations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from offpolicy.config.parsing import build, keys_of
from offpolicy.config.rules import broken_rules
from offpolicy.config.sections import (
    RANK_RUNNERS,
    AlgoConfig,
    EnvConfig,
    PolicyKind,
    ReplayConfig,
    RunSections,
    algorithm_info,
)
from offpolicy.errors import ConfigError

__all__ = [
    "AlgoConfig",
    "EnvConfig",
    "PolicyKind",
    "RANK_RUNNERS",
    "ReplayConfig",
    "algorithm_info",
    "RunConfig",
    "all_keys",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(RunSections):
    """Everything a run needs; the resolved form is written to `config.yaml` of the run directory."""

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> RunConfig:
        """Returns the checked configuration. Raises `ConfigError` listing every problem."""
        problems: list[str] = []
        config = build(cls, raw, problems, all_keys())
        if not problems:
            problems += broken_rules(config)
        if problems:
            raise ConfigError(problems)
        return config


def all_keys() -> list[str]:
    """Returns every dotted key of the configuration."""
    return keys_of(RunConfig)
