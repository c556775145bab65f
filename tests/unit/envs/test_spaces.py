"""Spaces: what is flattened in which order, where actions end up, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from gymnasium.spaces import utils
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from offpolicy.envs.spaces import Codec, action_map, describe, env_action, flatten
from offpolicy.errors import ConfigError, EnvFailure
from offpolicy.types import SpaceSpec

ACTION = spaces.Box(-1.0, 1.0, (1,), np.float32)
NESTED = spaces.Dict(
    {
        "zeta": spaces.Box(0, 255, (2,), np.uint8),
        "beta": spaces.Dict({"y": spaces.Box(-9.0, 9.0, (2, 2), np.float64), "x": spaces.Box(-9, 9, (), np.int64)}),
        "alpha": spaces.Box(-9.0, 9.0, (1,), np.float32),
    }
)


def scale(low: list[float], high: list[float], dtype: str = "float32") -> Callable[[Any], NDArray[Any]]:
    box = spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=np.dtype(dtype).type)
    return action_map(describe(spaces.Box(-1.0, 1.0, (1,)), box, None))


def flat_of(codec: Codec, obs: Any) -> Any:
    flat = np.empty(codec.spec.obs_dim, np.float32)
    flatten(codec, obs, flat)
    return flat


def problems(obs: Space[Any], action: Space[Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        describe(obs, action, None)
    return str(caught.value)


def test_dict_observations_are_flattened_in_gymnasiums_order_which_the_spec_records() -> None:
    codec = describe(NESTED, ACTION, 10)
    obs = {
        "zeta": np.array([6, 7], np.uint8),
        "beta": {"y": np.array([[2.0, 3.0], [4.0, 5.0]]), "x": np.int64(1)},
        "alpha": np.array([0.0], np.float32),
    }
    flat = flat_of(codec, obs)
    assert codec.spec.obs_keys == ("alpha", "beta/x", "beta/y", "zeta")
    assert flat.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert flat.dtype == np.float32
    assert flat.tolist() == utils.flatten(NESTED, obs).tolist()


def test_both_ends_of_every_bound_are_reached_exactly() -> None:
    odd = scale([-2.0, 1.0, 0.1], [0.5, 3.1, 0.3])
    ends = odd(np.array([[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]], np.float32))
    assert ends.dtype == np.float32
    assert ends[0].tolist() == np.array([-2.0, 1.0, 0.1], np.float32).tolist()
    assert ends[1].tolist() == np.array([0.5, 3.1, 0.3], np.float32).tolist()


@given(low=st.floats(-1e6, 1e6, width=32), size=st.floats(1.0, 1e6, width=32), action=st.floats(-1.0, 1.0, width=32))
def test_no_action_ever_leaves_the_bounds(low: float, size: float, action: float) -> None:
    box = spaces.Box(np.float32(low), np.float32(low + size), (1,), np.float32)
    made = scale([float(box.low[0])], [float(box.high[0])])(np.array([[action]], np.float32))
    assert box.contains(made[0])


def test_an_environment_with_discrete_actions_gets_a_number_of_its_space() -> None:
    space = spaces.Discrete(3, start=10)
    codec = describe(ACTION, space, None)
    action = env_action(codec, action_map(codec)(np.array([[2.0]], np.float32))[0])
    assert action == 12
    assert space.contains(action)


def test_several_discrete_actions_are_counted_from_zero_and_have_the_shape_of_their_space() -> None:
    space = spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [0, -2]])
    codec = describe(ACTION, space, None)
    assert codec.spec == SpaceSpec(
        1, 4, (0.0, 1.0, 0.0, -2.0), (1.0, 3.0, 3.0, 2.0), nvec=(2, 3, 4, 5), action_shape=(2, 2)
    )
    assert (codec.spec.choices, codec.spec.action_space) == ((2, 3, 4, 5), "MultiDiscrete")
    action = env_action(codec, action_map(codec)(np.array([[1.0, 2.0, 9.0, 0.0]], np.float32))[0])
    assert action.tolist() == [[1, 3], [3, -2]]
    assert space.contains(action)


def test_every_unsupported_part_is_named_at_once() -> None:
    obs = spaces.Dict({"a": spaces.Discrete(3), "b": ACTION, "c": spaces.Dict({"d": spaces.Text(5)})})
    text = problems(obs, spaces.MultiBinary(2))
    assert "key 'a': got Discrete(3)" in text
    assert "key 'c/d': got Text" in text
    assert "action space: got MultiBinary(2)" in text


def test_spaces_without_numbers_or_bounds_are_refused() -> None:
    assert "its bounds are infinite" in problems(ACTION, spaces.Box(-3.4e38, 1.0, (1,)))
    assert "allowed a Box of floats with finite bounds" in problems(ACTION, spaces.Box(0, 4, (1,), np.int64))
    assert "images are not supported: they would need" in problems(spaces.Box(0, 255, (64, 64, 3), np.uint8), ACTION)


def test_an_observation_that_is_not_as_declared_is_named() -> None:
    box = spaces.Box(-1.0, 1.0, (2,), np.float32)
    for space, value, expected in (
        (box, np.array(["a", "b"]), r"observation: expected shape \(2,\) dtype float32, got shape \(2,\) dtype <U1"),
        (box, None, "expected shape .*, got NoneType None"),
        (box, [[1.0], [1.0, 2.0]], "expected shape .*, got list"),
        (NESTED, {"alpha": np.zeros(1)}, r"key 'beta/x': expected shape \(\) dtype int64, got keys \['alpha'"),
        (NESTED, {"alpha": np.zeros(2)}, r"key 'alpha': expected shape \(1,\) dtype float32, got shape \(2,\)"),
    ):
        with pytest.raises(EnvFailure, match=expected):
            flat_of(describe(space, ACTION, None), value)
