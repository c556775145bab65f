"""The keys that an algorithm uses, their defaults, and whether a value fits one: what a suggestion is tried against."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from typing import Any

from offpolicy.config.chosen import Classes
from offpolicy.config.parsing import as_override, build, hints_of, is_within, keys_of, nested
from offpolicy.config.sections import AlgoConfig, AlgorithmInfo, RunSections

KWARGS = "env.kwargs"  # arguments of the environment: below it, any key may be
EXAMPLES = {"run_dir": "runs/mine", f"{KWARGS}.max_episode_steps": 1000, "algo.max_grad_norm": 0.5}
FROM_REPLAY_ONLY, FROM_ROLLOUTS_ONLY = ("replay", "collect.band"), ("rollout",)


@functools.cache
def keys_for(info: AlgorithmInfo) -> tuple[str, ...]:
    """Returns the dotted keys that are not refused with an algorithm."""
    unused = FROM_REPLAY_ONLY if info.learns_from_rollouts else FROM_ROLLOUTS_ONLY
    others = {f"algo.{spec.name}" for spec in dataclasses.fields(info.options or AlgoConfig) if not info.reads(spec)}
    keys = keys_of(RunSections, chosen={AlgoConfig: info.options or AlgoConfig})
    return tuple(key for key in keys if key not in others and not is_within(key, unused))


class Spec(typing.NamedTuple):
    """A key as it is declared."""

    hint: Any  # Any: a type, or a union of types
    limits: Mapping[str, Any]  # Any: the metadata of an `option`
    default: Any  # Any: a value of the configuration


@functools.cache
def specs(chosen: Classes = ()) -> Mapping[str, Spec]:
    """Returns every dotted key of the configuration as it is declared, with the classes of `chosen_classes`."""
    return dict(_specs(RunSections, "", dict(chosen)))


# Any: one of the configuration's dataclasses
def _specs(cls: Any, prefix: str, chosen: Mapping[type, type]) -> typing.Iterator[tuple[str, Spec]]:
    hints, defaults = hints_of(cls), cls()
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            section: Any = chosen.get(hint, hint)  # type: ignore[arg-type]  # a class here
            yield from _specs(section, f"{prefix}{field.name}.", chosen)
        else:
            yield f"{prefix}{field.name}", Spec(hint, field.metadata, getattr(defaults, field.name))


def example_of(key: str) -> Any:  # Any: a value of the configuration
    """Returns a value that the key surely takes: its default, an example where that says nothing."""
    return EXAMPLES[key] if key in EXAMPLES else specs()[key].default


def example_word(key: str) -> str:
    """Returns `key=value` with an example; an argument of the environment may have any value."""
    is_known = key in specs() or key in EXAMPLES
    return f"{key}={as_override(example_of(key)) if is_known else '<value>'}"


def is_fit(key: str, value: Any) -> bool:  # Any: a value of the command line
    """True if `key=value` is allowed, as far as that depends on nothing else."""
    if key.startswith(f"{KWARGS}."):
        return True
    problems: list[str] = []
    build(RunSections, nested({key: value}), problems, tuple(specs()))
    return not problems
