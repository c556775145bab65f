"""What a constructor makes has a fingerprint that shows a change; what functions hold is read and written."""

from __future__ import annotations

import collections
import copy
import math
import pathlib
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offpolicy.envs.constants import fingerprint, slots_of, types_of, write_slots


def counter() -> Callable[..., int]:
    count = 0

    def call(step: int = 1, *, scale: int = 1) -> int:
        nonlocal count
        count += step * scale
        return count

    return call


@pytest.mark.parametrize(
    "value",
    [len, math, math.sin, int, np.dtype("f4"), np.add, pathlib.Path("a"), counter, counter(), dict.fromkeys,
     spaces.Box(0.0, 1.0, (2,)), spaces.Dict(a=spaces.Discrete(2)), spaces.Tuple([spaces.MultiBinary(2)])],
)  # fmt: skip
def test_constants_have_a_fingerprint(value: Any) -> None:
    assert fingerprint(value) == fingerprint(value) != ""


@pytest.mark.parametrize("value", [1, [], "a", object(), [].append, np.random.default_rng().normal, np.zeros(2)])
def test_other_things_have_none(value: Any) -> None:
    assert fingerprint(value) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "2"), ("(1, 2)", "(1, 3)"), ("b'a'", "b'b'"), ("x in {1, 2}", "x in {1, 3}"), ("...", "2j"), ("1", "1.0"),
     ("lambda: 1", "lambda: 2"), ("[lambda: (y, 'a') for y in x]", "[lambda: (y, 'b') for y in x]")],
)  # fmt: skip
def test_functions_of_one_name_and_other_code_differ(one: str, other: str) -> None:
    first, same, second = (eval(f"lambda: {code}") for code in (one, one, other))
    assert fingerprint(first) == fingerprint(same) != fingerprint(second)


def test_the_order_of_a_constant_set_makes_no_difference() -> None:
    names = "x in {'a', 'b', 'c', 'd'}", "x in {'d', 'c', 'b', 'a'}"
    assert len({fingerprint(eval(f"lambda: {name}")) for name in names}) == 1


def test_spaces_of_one_shape_and_other_bounds_differ() -> None:
    one, other = (spaces.Dict(a=spaces.Box(0.0, high, (2,))) for high in (1.0, 2.0))
    assert fingerprint(one) != fingerprint(other)


def test_the_generators_of_a_space_and_of_those_inside_are_slots() -> None:
    one, other = (spaces.Dict(a=spaces.Sequence(spaces.Discrete(1000)), b=spaces.Discrete(2)) for _ in range(2))
    assert slots_of(one) == []
    one["a"].sample()
    assert fingerprint(one) == fingerprint(other)
    write_slots(other, copy.deepcopy(slots_of(one)))
    assert other["a"].sample() == one["a"].sample()


def test_what_is_no_generator_of_a_space_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the generator of a space, got int"):
        write_slots(spaces.Discrete(2), [(("generator", 0), 7)])
    with pytest.raises(ValueError, match="1 spaces in one hold"):
        write_slots(spaces.Discrete(2), [(("generator", 3), None)])


def test_a_closure_continues_in_another_function_of_the_same_code() -> None:
    one, other = counter(), counter()
    one()
    one.__defaults__ = (5,)  # type: ignore[attr-defined]  # a function
    write_slots(other, slots_of(one))  # type: ignore[arg-type]  # functions
    assert other() == one() == 6


def test_functions_with_other_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="holds"):
        write_slots(counter(), [(("closure", 7), 1)])  # type: ignore[arg-type]  # a function


def test_the_defaults_of_a_module_are_not_state() -> None:
    assert slots_of(test_the_defaults_of_a_module_are_not_state) == []


@pytest.mark.parametrize(
    ("items", "expected"),
    [([1.0, 2.0], {float}), ([1, 2.0], {int, float}), ([True, 1], {bool, int}), (collections.deque("a"), {str})],
)
def test_the_types_of_items_are_exact(items: Collection[Any], expected: set[type]) -> None:
    assert types_of(items) == expected
