"""Environments with random graphs of shared objects: a restored one takes the same 100 steps, or the save says no."""

from __future__ import annotations

import collections
import json
import zlib
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.state import EnvState, restore_state, save_state
from offpolicy.envs.vector import VectorAdapter, make_vector
from offpolicy.errors import CheckpointError
from tests.unit.envs.test_state import actions_of, bits, roll, saved

SHARED: list[Any] = []  # what the environments of one vector share; a test empties it before it makes a vector
NUM_OBJECTS = 14
# Of the attributes. The last ones are names that Gymnasium gives attributes of its own, in wrappers or in environments.
NAMES = (*(f"n{index}" for index in range(NUM_OBJECTS)), "env", "metadata", "_cached_spec", "_saved_kwargs")


def counter(held: Any) -> Callable[[], int]:
    """A closure with a number that changes, over another object."""
    count = 0

    def call() -> int:
        nonlocal count
        count += 1 if held is not None else 2
        return count

    return call


def pair(start: float) -> tuple[Callable[[], float], Callable[[], float]]:
    """Two closures that share a cell."""

    def grow() -> float:
        nonlocal start
        start += 0.5
        return start

    def read() -> float:
        return start

    return grow, read


class Graph(gymnasium.Env[Any, Any]):
    """Attributes `n0`, `n1`, ... form a random graph; every step changes some of it, through any of its names."""

    def __init__(self, structure: int = 0, oddity: str = "") -> None:
        self.observation_space = spaces.Box(-1.0, 2.0**32, (1,), np.float64)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.driver = np.random.default_rng(0)
        self.limits = [self.action_space.low, self.action_space.high]
        self.stride = self.left
        build = np.random.default_rng(structure)
        made: list[Any] = SHARED if build.random() < 0.5 else []
        while len(made) < NUM_OBJECTS:
            made.append(self.new(build, made))
        for name in NAMES:
            setattr(self, name, made[build.integers(len(made))])
        if oddity == "object":
            self.n0 = [object()]
        elif oddity == "method":
            self.n0 = {"advance": Helper().advance}
        elif oddity == "closure":
            self.n0 = counter(Helper())

    def left(self) -> float:
        return 1.0

    def right(self) -> float:
        return 2.0

    def new(self, random: np.random.Generator, others: list[Any]) -> Any:
        """An object that may refer to others."""
        some = [others[i] for i in random.integers(len(others), size=random.integers(4))] if others else []
        arrays = [one for one in others if isinstance(one, np.ndarray) and one.ndim == 2]
        methods = [
            getattr(one, {list: "append", collections.deque: "append", np.random.Generator: "normal"}[type(one)])
            for one in others
            if type(one) in (list, collections.deque, np.random.Generator)
        ]
        kinds: list[Callable[[], Any]] = [
            lambda: [0.5, *some],
            lambda: {"a": 1, **{f"k{i}": one for i, one in enumerate(some)}},
            lambda: collections.deque(some, maxlen=5),
            lambda: (1, *some),
            lambda: np.asarray(random.normal(size=(3, 4)), order="F" if random.random() < 0.5 else "C"),
            lambda: np.random.Generator(np.random.MT19937(int(random.integers(9)))),
            lambda: np.random.default_rng(int(random.integers(9))),
            lambda: random.normal(size=40).tolist(),
            lambda: counter(some),
            lambda: list(pair(1.0)),
        ]
        if arrays:
            base = arrays[random.integers(len(arrays))]
            views = (base[1:], base.T, base[::-1, ::2], base.reshape(-1)[2:5], base[:, 0], base.view(np.int64))
            kinds += [lambda: views[random.integers(len(views))]] * 3
        if methods:
            kinds += [lambda: methods[random.integers(len(methods))]] * 2
        return kinds[random.integers(len(kinds))]()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.driver = np.random.default_rng(seed)
        return self.picture(), {}

    def step(self, action: Any) -> Any:
        self.action = action
        for _ in range(4):
            self.change(getattr(self, NAMES[self.driver.integers(len(NAMES))]))
        name = NAMES[self.driver.integers(len(NAMES))]
        match self.driver.integers(12):
            case 0:
                setattr(self, name, getattr(self, NAMES[self.driver.integers(len(NAMES))]))
            case 1:
                setattr(self, name, np.arange(12.0).reshape(3, 4)[:, 1:])
            case 2:
                self.stride = self.right if self.stride() == 1.0 else self.left
            case 3:
                self.child = self.driver.spawn(1)[0]
            case 4:
                locked = np.arange(12.0)
                setattr(self, name, [locked, locked[4:]])  # the view can be written for ever
                locked.flags.writeable = False
        return self.picture(), self.stride(), False, bool(self.driver.random() < 0.05), {}

    def change(self, value: Any) -> None:
        number = float(self.driver.integers(9))
        other = getattr(self, NAMES[self.driver.integers(len(NAMES))])
        if isinstance(value, list | collections.deque):
            value.append(number if number < 7 else other)
            for view in [one for one in value if isinstance(one, np.ndarray) and one.flags.writeable][:1]:
                self.change(view)
            if len(value) > 60:
                value.pop()
        elif isinstance(value, dict):
            value[f"k{number}"] = other if number > 6 else number
        elif isinstance(value, np.ndarray) and value.flags.writeable:
            value += 1 if value.dtype.kind == "i" else number
        elif isinstance(value, np.random.Generator):
            value.normal()
        elif isinstance(value, FunctionType):
            value()
        elif isinstance(value, BuiltinFunctionType):
            value(number)
            if isinstance(value.__self__, list) and len(value.__self__) > 60:
                value.__self__.clear()

    def picture(self) -> Any:
        """A number that differs wherever a value differs, or what is shared."""
        order: dict[int, int] = {}  # of every object, when it was met
        names = sorted(name for name in vars(self) if name[0] in "nlc" or name in (*NAMES, "driver", "action"))
        parts = list(names)
        todo = [getattr(self, name) for name in reversed(names)]
        while todo:
            value = todo.pop()
            if isinstance(value, float | int | str | np.generic | None):
                parts.append(repr(value))
                continue
            is_new = id(value) not in order
            order.setdefault(id(value), len(order))
            if not isinstance(value, BuiltinFunctionType | MethodType):
                parts.append(str(order[id(value)]))
            if is_new:
                todo += inside(value, parts)
        return np.array([zlib.crc32("|".join(parts).encode())], np.float64)


class Helper:
    def advance(self) -> None:
        """Does nothing."""


def inside(value: Any, parts: list[str]) -> list[Any]:
    """What an object holds; its own bits are appended to `parts`."""
    parts.append(type(value).__name__)
    if isinstance(value, dict):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple | collections.deque):
        return list(value)
    if isinstance(value, np.ndarray):
        parts.append(f"{value.dtype}{value.shape}{value.flags.writeable}{value.tobytes().hex()}")
    elif isinstance(value, np.random.Generator):
        parts.append(str(value.bit_generator.state))
    elif isinstance(value, FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or ()]
    elif isinstance(value, BuiltinFunctionType):
        parts.append(value.__name__)
        return [value.__self__]
    return []


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gymnasium.registry, "Graph-v0", gymnasium.envs.registration.EnvSpec("Graph-v0", Graph))


def make(structure: int, oddity: str = "") -> VectorAdapter:
    SHARED.clear()
    kwargs = {"structure": structure, "oddity": oddity, "max_episode_steps": 70}
    return make_vector(EnvConfig(id="Graph-v0", kwargs=kwargs, num_envs=2))


def continues_exactly(structure: int, before: int, steps: int = 100) -> bool:
    """False if the restored one is refused, aloud; fails if it takes other steps."""
    envs = make(structure)
    envs.reset(5)
    actions = actions_of(envs, before + steps)
    roll(envs, actions[:before])
    state = saved(envs)
    after = roll(envs, actions[before:])
    fresh = make(structure)
    fresh.reset(77)
    try:
        restore_state(fresh, state)
    except CheckpointError:
        return False
    assert bits(roll(fresh, actions[before:])) == bits(after)
    return True


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(structure=st.integers(0, 2**32), before=st.integers(0, 40))
def test_a_restored_graph_takes_the_same_steps_or_is_refused(structure: int, before: int) -> None:
    continues_exactly(structure, before)


def test_most_graphs_are_restored() -> None:
    assert sum(continues_exactly(structure, before=7, steps=20) for structure in range(12)) >= 6


@pytest.mark.parametrize("oddity", ["object", "method", "closure"])
def test_what_a_graph_hides_is_named(oddity: str) -> None:
    envs = make(3, oddity)
    envs.reset(5)
    assert str(save_state(envs)).startswith("Graph.n0")


def test_a_state_is_json_and_one_block_of_memory() -> None:
    envs = make(4)
    envs.reset(5)
    state = save_state(envs)
    assert isinstance(state, EnvState)
    assert json.loads(json.dumps(state.meta, allow_nan=False)) == state.meta
    assert state.arrays["memory"].dtype == np.uint8
