"""Every key refuses what it must, names itself and says what is allowed."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from offpolicy.config.schema import RunConfig, all_keys
from offpolicy.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Leaf:
    key: str
    kind: Any
    is_optional: bool
    limits: dict[str, Any]


def leaves(cls: Any = RunConfig, prefix: str = "") -> Iterator[Leaf]:
    hints = typing.get_type_hints(cls)
    for spec in dataclasses.fields(cls):
        hint = hints[spec.name]
        if dataclasses.is_dataclass(hint):
            yield from leaves(hint, f"{prefix}{spec.name}.")
        else:
            is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
            is_optional = types.NoneType in typing.get_args(hint)
            kind = typing.get_args(hint)[0] if is_union else typing.get_origin(hint) or hint
            yield Leaf(prefix + spec.name, kind, is_optional, dict(spec.metadata))


LEAVES = {leaf.key: leaf for leaf in leaves()}
NUMBERS = [key for key, leaf in LEAVES.items() if leaf.kind in (int, float)]
CHOSEN = [key for key, leaf in LEAVES.items() if "choices" in leaf.limits]
WRONG_TYPES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.one_of(st.integers(), st.text(), st.floats(), st.lists(st.booleans())),
    int: st.one_of(st.booleans(), st.text(), st.sampled_from([0.5, math.nan, math.inf]), st.lists(st.integers())),
    float: st.one_of(st.booleans(), st.text(), st.sampled_from([math.nan, math.inf, -math.inf]), st.just({"a": 1})),
    str: st.one_of(st.booleans(), st.integers(), st.floats(), st.lists(st.text())),
    tuple: st.one_of(st.integers(), st.text(), st.just([]), st.just([64, "64"]), st.just([0.5]), st.just([True])),
    dict: st.one_of(st.integers(), st.text(), st.lists(st.integers())),
}


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def default_of(key: str) -> Any:
    value: Any = RunConfig()
    for part in key.split("."):
        value = getattr(value, part)
    return value


def problems(raw: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_mapping(raw)
    return caught.value.problems


def outside(limits: dict[str, Any]) -> st.SearchStrategy[int]:
    """Whole numbers that the limits exclude."""
    low = limits.get("ge", limits.get("gt"))
    high = limits.get("le", limits.get("lt"))
    below = (
        [] if low is None else [st.integers(max_value=math.ceil(low) - 1), *([st.just(low)] if "gt" in limits else [])]
    )
    above = (
        []
        if high is None
        else [st.integers(min_value=math.floor(high) + 1), *([st.just(high)] if "lt" in limits else [])]
    )
    return st.one_of(*below, *above)


@pytest.mark.parametrize("key", [key for key in NUMBERS if {"ge", "gt", "le", "lt"} & LEAVES[key].limits.keys()])
@given(data=st.data())
def test_a_number_out_of_range_is_refused_with_key_and_range(key: str, data: st.DataObject) -> None:
    limits = LEAVES[key].limits
    value = data.draw(outside(limits))
    (problem,) = problems(nested(key, value))
    assert problem.startswith(f"{key}: got {value}")
    assert all(str(limits[bound]) in problem for bound in ("ge", "gt", "le", "lt") if bound in limits)


@pytest.mark.parametrize("key", list(LEAVES))
@given(data=st.data())
def test_a_value_of_another_type_is_refused_with_its_key(key: str, data: st.DataObject) -> None:
    value = data.draw(WRONG_TYPES[LEAVES[key].kind])
    assume(not (isinstance(value, bool) and str(value).lower() in LEAVES[key].limits.get("choices", ())))
    assume(value != [] or default_of(key) != ())  # a list of names may be empty
    (problem,) = problems(nested(key, value))
    assert problem.startswith(f"{key}: got {value!r} ({type(value).__name__}), allowed ")


@pytest.mark.parametrize("key", [key for key, leaf in LEAVES.items() if not leaf.is_optional])
def test_null_is_refused_where_it_has_no_meaning(key: str) -> None:
    (problem,) = problems(nested(key, None))
    assert problem.startswith(f"{key}: got None")


@pytest.mark.parametrize("key", [key for key, leaf in LEAVES.items() if leaf.is_optional])
def test_null_is_accepted_where_it_has_one(key: str) -> None:
    value = RunConfig.from_mapping(nested(key, None))
    for part in key.split("."):
        value = getattr(value, part)
    assert value is None


@pytest.mark.parametrize("key", list(LEAVES))
def test_a_typo_is_refused_with_the_key_that_was_meant(key: str) -> None:
    typo = key + key[-1]
    (problem,) = problems(nested(typo, 1))
    assert problem.startswith(f"{typo}: unknown key; did you mean {key}? known keys here: ")


@pytest.mark.parametrize(("given_as", "meant"), [(True, "true"), (False, "false"), ("auto", "auto"), ("true", "true")])
def test_a_choice_that_yaml_reads_as_a_bool_is_the_word(given_as: object, meant: str) -> None:
    assert RunConfig.from_mapping(nested("eval.beside", given_as)).eval.beside == meant


@pytest.mark.parametrize("key", CHOSEN)
def test_a_value_that_is_no_choice_is_refused_with_the_choices(key: str) -> None:
    choices = LEAVES[key].limits["choices"]
    (problem,) = problems(nested(key, choices[0] + "x"))
    assert f"allowed one of {', '.join(choices)}" in problem
    assert "did you mean" in problem


def test_every_key_is_documented() -> None:
    assert [key for key, leaf in LEAVES.items() if not leaf.limits["doc"]] == []
    assert all_keys() == list(LEAVES)


def test_a_number_too_large_for_a_float_is_refused() -> None:
    (problem,) = problems({"log": {"every_s": 10**400}})
    assert problem.startswith("log.every_s: got 1000")
