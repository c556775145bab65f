"""The options that nothing reads in a run: each option says what it `needs`."""

from __future__ import annotations

import functools
import json
import re

from offpolicy.config.schema import RunConfig
from offpolicy.types import Json

CONDITION = re.compile(r"([\w.]+)(!=|=|<)(\S+)")  # of `needs`


def unread_options(cfg: RunConfig) -> dict[str, str]:
    """Returns what an option needs to be read, by its key: those that are set, and that nothing reads in this run."""
    values, specs = cfg.values_by_key(), cfg.specs()
    found = {key: needs for key, needs in unread_keys(cfg).items() if values[key] != specs[key].default}
    return found | {f"sinks.{name}": f"log.sinks=[{name}]" for name in cfg.sinks if name not in cfg.log.sinks}


def unread_keys(cfg: RunConfig) -> dict[str, str]:
    """Returns the conditions of `needs` that do not hold in this run, by the key of the option that nothing reads."""
    found = {
        key: [condition for condition in spec.limits["needs"].split() if not _holds(cfg, condition)]
        for key, spec in cfg.specs().items()
    }
    return {key: " ".join(unmet) for key, unmet in found.items() if unmet}


def _holds(cfg: RunConfig, condition: str) -> bool:
    """True if a condition of `needs` holds: `key=value,value`, `key!=value,value` or `key<key`."""
    match = CONDITION.fullmatch(condition)
    assert match is not None, condition
    key, operator, operand = match.groups()
    info = cfg.algo.info
    if key == "algo" and info.options is not None and info.like is None:  # what a plug-in reads is its own affair
        return True
    in_force = {"algo": (info.like or info).name, "algo.stage": info.stage or "teach", "collect.mode": cfg.collect_mode}
    value: Json = in_force.get(key) or functools.reduce(getattr, key.split("."), cfg)
    if operator == "<":
        limit: Json = functools.reduce(getattr, operand.split("."), cfg)
        return bool(value < limit)
    return (json.dumps(value, default=str).strip('"') in operand.split(",")) == (operator == "=")
