"""Plain data: every value comes back as it was, through JSON, with identity and bits."""

from __future__ import annotations

import collections
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpolicy.envs.state_values import Decoder, Encoder, NotPlainError


def round_trip(value: Any) -> Any:
    encoder = Encoder("x/")
    data = json.loads(json.dumps(encoder.encode(value, "value"), allow_nan=False))
    return Decoder(encoder.arrays).decode(data)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**130), 2**130) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_nested_values_come_back_equal(value: Any) -> None:
    back = round_trip(value)
    assert back == value
    assert repr(back) == repr(value)


def test_nan_and_infinities_survive_strict_json() -> None:
    back = round_trip([math.nan, math.inf, -math.inf, -0.0])
    assert math.isnan(back[0])
    assert back[1:3] == [math.inf, -math.inf]
    assert math.copysign(1.0, back[3]) == -1.0


def test_containers_keep_their_kind() -> None:
    back = round_trip({"t": (1, [2, (3,)]), "d": collections.deque([1, 2], maxlen=4), "$array": {"$int": 1}})
    assert back == {"t": (1, [2, (3,)]), "d": collections.deque([1, 2]), "$array": {"$int": 1}}
    assert back["d"].maxlen == 4


@pytest.mark.parametrize(
    "value", [np.float32(0.1), np.float64(np.nan), np.int8(-3), np.bool_(True), np.uint64(2**64 - 1)]
)
def test_numpy_scalars_keep_dtype_and_bits(value: Any) -> None:
    back = round_trip(value)
    assert (type(back), back.tobytes()) == (type(value), value.tobytes())


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::2],
        np.array(3.0),
        np.zeros((0, 3), np.uint8),
        np.array([True, False]),
    ],
)
def test_arrays_keep_dtype_shape_bits_and_order(value: Any) -> None:
    back = round_trip(value)
    assert (back.dtype, back.shape, back.tobytes()) == (value.dtype, value.shape, value.tobytes())
    if value.size:
        assert back.flags.f_contiguous == (value.flags.f_contiguous or value.ndim < 2)


def test_one_array_under_two_names_comes_back_as_one_array() -> None:
    array = np.zeros(2)
    back = round_trip({"a": array, "b": [array], "c": np.zeros(2)})
    assert back["a"] is back["b"][0]
    assert back["a"] is not back["c"]


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_a_generator_continues_its_stream(kind: str) -> None:
    generator = np.random.Generator(getattr(np.random, kind)(5))
    generator.integers(0, 10, 3, dtype=np.int32)  # leaves half a word in the buffer
    back = round_trip(generator)
    assert back.bit_generator.state["bit_generator"] == kind
    assert (
        back.integers(0, 2**31, 7, dtype=np.int32).tolist() == generator.integers(0, 2**31, 7, dtype=np.int32).tolist()
    )
    assert back.normal(size=3).tobytes() == generator.normal(size=3).tobytes()


def test_one_generator_under_two_names_stays_one_stream() -> None:
    generator = np.random.default_rng(1)
    back = round_trip([generator, generator, np.random.default_rng(1)])
    assert back[0] is back[1]
    assert back[0] is not back[2]


def test_captured_values_do_not_change_with_the_original() -> None:
    array, encoder = np.zeros(2), Encoder("")
    encoder.encode(array, "a")
    array[:] = 1.0
    assert encoder.arrays["0"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, object()]}, r"it\['a'\]\[1\] is a builtins.object"),
        (np.array([object()]), "it is an array of dtype object"),
        (np.array(["a"]), "it is an array of dtype <U1"),
        ({1, 2}, "it is a builtins.set"),
        (np.frombuffer(bytearray(8)), "it is a view of memory that NumPy does not own"),
    ],
)
def test_a_value_that_cannot_be_captured_is_named_with_its_place(value: Any, expected: str) -> None:
    with pytest.raises(NotPlainError, match=expected):
        Encoder("").encode(value, "it")


def test_a_file_cannot_name_an_unknown_generator() -> None:
    with pytest.raises(ValueError, match="unknown bit generator 'seed'"):
        Decoder({}).decode({"$generator": {"$dict": [["bit_generator", "seed"]]}, "id": 0})
