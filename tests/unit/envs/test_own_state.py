"""`get_state` and `set_state` are taken at their word, and checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offpolicy.envs.constants import NotPlainError
from offpolicy.envs.own_state import attribute_digests, check_restored, get_state, offers_state, value_digest


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
