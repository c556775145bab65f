"""`get_state` and `set_state` are taken at their word, and checked."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

from offpolicy.envs.constants import NotPlainError
from offpolicy.envs.own_state import attribute_digests, check_restored, get_state, offers_state, value_digest
from offpolicy.timing.clock import Stopwatch


class Layer:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def get_state(self) -> Any:
        return dict(vars(self))

    def set_state(self, state: Any) -> None:
        vars(self).update(state)


class Half(Layer):
    get_state = None  # type: ignore[assignment]  # not a method


def test_two_methods_of_the_right_arguments_are_an_offer() -> None:
    assert offers_state(Layer())
    assert not offers_state(Half())
    assert not offers_state(type("Simulator", (Layer,), {"set_state": lambda self, qpos, qvel: None})())


def test_whatever_get_state_raises_is_a_reason() -> None:
    def fail(_: object) -> None:
        raise KeyboardInterrupt("mine")

    with pytest.raises(NotPlainError, match=r"Odd.get_state\(\) raised KeyboardInterrupt: mine"):
        get_state(type("Odd", (Layer,), {"get_state": fail})())


@pytest.mark.parametrize(
    ("one", "other"),
    [(1.0, 1.5), ([1], [2]), ({"a": 1}, {"b": 1}), (np.zeros(2), np.zeros((1, 2))), (np.zeros(2), -np.zeros(2))],
)
def test_digests_differ_where_values_do(one: Any, other: Any) -> None:
    assert value_digest(one) != value_digest(other)


@pytest.mark.parametrize(
    ("one", "other"), [(0.5, np.float64(0.5)), ((1, 2), [1, 2]), (np.zeros((2, 2)).T, np.zeros((2, 2)))]
)
def test_digests_do_not_see_what_makes_no_difference(one: Any, other: Any) -> None:
    assert value_digest(one) == value_digest(other) is not None


@pytest.mark.parametrize("item", [0.5, 7, True, np.float64(0.5), np.int64(7), np.bool_(True), 2**70])
def test_digests_of_long_sequences_see_values_and_types_of_items(item: Any) -> None:
    one = [item] * 40
    plain = item.item() if isinstance(item, np.generic) else item
    assert value_digest(one) == value_digest(collections.deque([plain] * 40)) is not None
    assert len({value_digest(other) for other in (one, one[1:], [*one[1:], 0], [[item] * 20, [item] * 20])}) == 4
    assert value_digest([1.0] * 40) != value_digest([1] * 40) != value_digest([True] * 40)


def test_an_int_that_64_bits_do_not_hold_among_many_has_a_digest() -> None:
    assert value_digest([1] * 40 + [2**70]) != value_digest([1] * 40 + [2**71])


@pytest.mark.alone
@pytest.mark.parametrize("make", [list, lambda items: dict(enumerate(items))])
def test_the_digest_of_a_million_numbers_takes_less_than_half_a_second(make: Any) -> None:
    value, watch = make([0.5] * 1_000_000), Stopwatch()
    value_digest(value)
    assert watch.elapsed_s() < 0.5


def test_what_is_not_plain_has_no_digest_and_is_left_to_get_state() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert attribute_digests(Layer(a=object(), b=cycle, c=1), "abc").keys() == {"c"}


def test_an_attribute_that_was_not_restored_is_named() -> None:
    digests = attribute_digests(Layer(a=1, b=2), "ab")
    check_restored(Layer(a=1, b=2), digests, {"a": 1, "b": 2})
    with pytest.raises(NotPlainError, match="does not restore Layer.b"):
        check_restored(Layer(a=1, b=3), digests, {"a": 1, "b": 2})
    with pytest.raises(NotPlainError, match="is not what"):
        check_restored(Layer(a=1, b=2), digests, {"a": 1})
