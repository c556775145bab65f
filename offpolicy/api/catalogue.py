"""The names that `algo=` and `env=` take."""

from __future__ import annotations

from collections.abc import Mapping

from offpolicy.config.overrides import environment_ids, group_options


def algorithms() -> tuple[str, ...]:
    """Returns the names of the algorithms, as `algo=` takes them."""
    return group_options()["algo"]


def environments() -> Mapping[str, str]:
    """Returns the environments that `env=` takes: their Gymnasium ids by name.

    Any other Gymnasium id is given as `env.id=...`, also as `module:EnvId-v0`.
    """
    return environment_ids()
