"""Every reader of a saved value says what it got, where, and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpolicy.errors import CheckpointError
from offpolicy.saved_fields import LARGEST_COUNT, Fields, short
from tests.hostile import DEEP, HUGE, VALUES

READERS: dict[str, Callable[[Fields], Any]] = {
    "count": lambda fields: fields.count("key", 5),
    "number": lambda fields: fields.number("key"),
    "flag": lambda fields: fields.flag("key"),
    "text": lambda fields: fields.text("key"),
    "optional_text": lambda fields: fields.optional_text("key"),
    "counts": lambda fields: fields.counts("key", 2),
    "fields": lambda fields: fields.fields("key"),
    "octets": lambda fields: fields.octets("key", 2),
    "digits": lambda fields: fields.digits("key", 99),
}


@pytest.mark.parametrize(
    ("reader", "value", "expected"),
    [
        ("count", 5, 5),
        ("number", -1.5, -1.5),
        ("number", 7, 7.0),
        ("flag", True, True),
        ("text", "x", "x"),
        ("optional_text", None, None),
        ("counts", [0, LARGEST_COUNT], [0, LARGEST_COUNT]),
        ("octets", "01ff", b"\x01\xff"),
        ("digits", "99", 99),
    ],
)
def test_what_is_allowed_is_returned(reader: str, value: Any, expected: Any) -> None:
    assert READERS[reader](Fields("state.json", {"key": value})) == expected


@pytest.mark.parametrize(
    ("reader", "value", "said"),
    [
        ("count", 6, "got 6, allowed a whole number from 0 to 5"),
        ("count", True, "got True, allowed a whole number"),
        ("count", HUGE, "got a whole number of 401 digits, allowed"),
        ("number", float("nan"), "got nan, allowed a finite number"),
        ("number", HUGE, "allowed a finite number"),
        ("flag", 1, "got 1, allowed true or false"),
        ("text", "x" * 5000, "allowed a text of at most 4096 characters"),
        ("counts", [0], "got [0], allowed a list of 2 whole numbers"),
        ("counts", {}, "got {}, allowed a list"),
        ("fields", [1], "got [1], allowed a mapping"),
        ("octets", "zz", "got 'zz', allowed hexadecimal digits"),
        ("octets", "00", "allowed 2 bytes in hexadecimal digits (it has 1)"),
        ("digits", 7, "got 7, allowed the digits"),
        ("digits", "100", "allowed the digits of a whole number from 0 to 99"),
        ("digits", "９", "allowed the digits"),
    ],
)
def test_anything_else_is_refused_by_name(reader: str, value: Any, said: str) -> None:
    with pytest.raises(CheckpointError, match=r"^state\.json: key") as caught:
        READERS[reader](Fields("state.json", {"key": value}))
    assert said in str(caught.value)


def test_a_key_that_is_missing_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"state\.json: key: got nothing, allowed a value: it is missing"):
        Fields("state.json", {}).count("key")


@given(st.sampled_from(VALUES), st.sampled_from(list(READERS)))
def test_whatever_the_value_is_the_error_is_ours_and_short(value: Any, reader: str) -> None:
    try:
        READERS[reader](Fields("state.json", {"key": value}))
    except CheckpointError as error:
        said = str(error)
    else:
        said = ""
    assert len(said) < 400
    assert len(short(value)) <= 200


def test_a_deep_value_is_short() -> None:
    assert short(DEEP) == "[[[...]]]"
