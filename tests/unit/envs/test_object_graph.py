"""Plain data: every value comes back as it was, through JSON, with identity and bits."""

from __future__ import annotations

import collections
import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpolicy.envs.object_graph import Decoder, Encoder, NotPlainError


def round_trip(value: Any) -> Any:
    encoder = Encoder()
    reference = encoder.encode(value, (None, "value"))
    nodes, reference = json.loads(json.dumps([encoder.nodes, reference], allow_nan=False))
    return decoded(nodes, reference, encoder.memory())


def decoded(nodes: Any, reference: Any, memory: Any = b"") -> Any:
    """What a file of these nodes stands for, where nothing is known."""
    return Decoder(nodes, np.frombuffer(memory, np.uint8), {}.__getitem__).decode(reference)


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
    assert back.strides == value.strides


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
    array, encoder = np.zeros(2), Encoder()
    encoder.encode(array, (None, "a"))
    array[:] = 1.0
    assert not encoder.memory().any()


def test_containers_and_cycles_keep_their_identity() -> None:
    inner: list[Any] = [1.0]
    value: dict[str, Any] = {"a": inner, "b": (inner, {"c": inner}), "d": collections.deque([inner])}
    value["self"] = value
    inner.append((value, inner))
    back = round_trip(value)
    assert back["self"] is back
    assert back["a"] is back["b"][0] is back["b"][1]["c"] is back["d"][0] is back["a"][1][1]
    assert back["a"][1][0] is back


def test_a_chain_of_a_hundred_thousand_lists_comes_back() -> None:
    chain: list[Any] = []
    for _ in range(100_000):
        chain = [chain]
    back, depth = round_trip(chain), 0
    while back:
        back, depth = back[0], depth + 1
    assert depth == 100_000


def test_tuples_nested_too_deep_are_named() -> None:
    chain: tuple[Any, ...] = ()
    for _ in range(100_000):
        chain = (chain,)
    with pytest.raises(NotPlainError, match="tuples nested too deep"):
        round_trip(chain)


@pytest.mark.parametrize("numbers", [[0.1, math.inf, -0.0] * 20, list(range(-50, 50)), [2**70] * 40, [True] * 40])
def test_long_sequences_come_back_as_they_were(numbers: list[Any]) -> None:
    for value in (numbers, tuple(numbers), collections.deque(numbers, maxlen=len(numbers))):
        back = round_trip(value)
        assert (repr(back), type(back)) == (repr(value), type(value))


def test_a_million_floats_take_eight_bytes_each() -> None:
    encoder = Encoder()
    encoder.encode([0.5] * 1_000_000, (None, "history"))
    assert encoder.memory().size == 8_000_000
    assert len(json.dumps(encoder.nodes)) < 100


@pytest.mark.parametrize("order", ["C", "F"])
def test_views_share_memory_with_their_base_again(order: Any) -> None:
    base = np.arange(12.0).reshape(3, 4).copy(order)
    views = [base[1:], base.T, base[::-1, ::2], base.T[1], base.reshape(-1, order=order)[2:5], base.view(np.int64)]
    locked = base[0]
    locked.flags.writeable = False
    back, *others, still_locked = round_trip([base, *views, locked])
    back += 1.0
    base += 1.0
    for view, other in zip(views, others, strict=True):
        assert np.shares_memory(back, other)
        assert (other.dtype, other.strides, other.tobytes()) == (view.dtype, view.strides, view.tobytes())
    assert (still_locked.flags.writeable, still_locked.tolist()) == (False, locked.tolist())


def test_a_view_that_was_made_before_its_array_was_locked_stays_writeable() -> None:
    base = np.zeros(3)
    view = base[1:]
    base.flags.writeable = False
    for locked, writeable in (round_trip([base, view]), round_trip([view, base])[::-1]):
        assert not locked.flags.writeable
        writeable += 1.0
        assert locked.tolist() == [0.0, 1.0, 1.0]


def test_a_writeable_view_of_an_array_that_is_locked_here_is_refused() -> None:
    bound = np.zeros(3)
    encoder = Encoder({id(bound): (bound, ["low"])})
    reference = encoder.encode(bound[1:], (None, "view"))
    bound.flags.writeable = False
    with pytest.raises(ValueError, match="a writeable view of an array that is read-only here"):
        Decoder(encoder.nodes, encoder.memory(), lambda _: bound).decode(reference)


def test_a_generator_spawns_the_same_children() -> None:
    generator = np.random.default_rng(3)
    generator.spawn(2)
    back = round_trip({"rng": generator, "seeds": generator.bit_generator.seed_seq})
    assert back["rng"].bit_generator.seed_seq is back["seeds"]
    assert back["rng"].spawn(1)[0].random() == generator.spawn(1)[0].random()


def test_a_method_belongs_to_the_restored_object() -> None:
    generator, items = np.random.default_rng(3), [1.0]
    back = round_trip({"draw": generator.normal, "rng": generator, "push": items.append, "items": items})
    back["push"](2.0)
    assert back["items"] == [1.0, 2.0]
    assert (back["draw"](), back["rng"].normal()) == (generator.normal(), generator.normal())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, object()]}, r"it\['a'\]\[1\] is a builtins.object"),
        (np.array([object()]), "it is an array of dtype object"),
        (np.array(["a"]), "it is an array of dtype <U1"),
        ({1, 2}, "it is a builtins.set"),
        (np.frombuffer(bytearray(8)), "it is a view of memory that NumPy does not own"),
        (json.JSONDecoder().decode, "it is a method of a json.decoder.JSONDecoder"),
        (np.zeros(1).tolist, "it is a method of a numpy.ndarray"),
        ([len], r"it\[0\] is a builtins.builtin_function_or_method, which a restored environment cannot find"),
    ],
)
def test_a_value_that_cannot_be_captured_is_named_with_its_place(value: Any, expected: str) -> None:
    with pytest.raises(NotPlainError, match=expected):
        Encoder().encode(value, (None, "it"))


PCG = {"bit_generator": "PCG64", "state": {"state": "0x1", "inc": "0x1"}, "has_uint32": "0x0", "uinteger": "0x0"}
MT = {"bit_generator": "MT19937", "state": {"key": ["<u4", *[1] * 624], "pos": "0x0"}}


@pytest.mark.parametrize(
    "nodes",
    [
        [["bits", {**PCG, "bit_generator": "seed"}, None]],
        [["bits", {**PCG, "bit_generator": "MT19937"}, None]],
        [["bits", {**MT, "state": {**MT["state"], "pos": "0x271"}}, None]],  # NumPy would read beyond its memory
        [["bits", {**MT, "state": {**MT["state"], "key": ["<u4", 1]}}, None]],
        [["array", "<f8", [2], 0, "C", True]],  # 8 bytes are there
        [["array", "<f8", [-1], 0, "C", True]],
        [["array", "<f8", [1], -8, "C", True]],
        [["array", "|O", [1], 0, "C", True]],
        [["array", "<f8", [1], 0, "C", True], ["view", "<f8", [2], [0], 0, [8], True]],
        [["array", "<f8", [1], 0, "C", True], ["view", "<f8", [1], [0], 8, [8], True]],
        [["array", "<f8", [1], 0, "C", True], ["view", "<f8", [2], [0], 0, [-8], True]],
        [["array", "<f8", [1], 0, "C", True], ["method", [0], "tofile"]],
        [["list", [], None], ["method", [0], "__class__"]],
        [["list", [], None], ["layer method", [0], "append", "function x"]],
        [["same", [], "function builtins.eval", ["eval"]]],
        [["list", [[7]], None]],
        [["list", {"<f8": [0, 2]}, None]],
        [["list", {"|O": [0, 1]}, None]],
        [["dict", ["a"], None]],
        [["dict", [[0], 1], None]],  # a dict is no key
        [["tuple", [[0]]]],
        [["deque", [], -1]],
        [["os.system", "true"]],
        [[]],
        [None],
        {"list": []},
        7,
    ],
)
def test_a_file_of_anything_else_is_refused(nodes: Any) -> None:
    with pytest.raises(ValueError, match="it holds what no environment saves"):
        decoded(nodes, [0], bytes(8))


@pytest.mark.parametrize("reference", [{"a": 1}, [3], ["int", "x"], ["float", "00"], ["scalar", "|O", "00"], ["x", 1]])
def test_a_reference_to_nothing_is_refused(reference: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, struct.error)):
        decoded([], reference)
