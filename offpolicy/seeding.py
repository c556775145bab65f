"""Independent random streams of one seed: each is named, so adding one never shifts another."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np


def sequence(seed: int, *path: str | int) -> np.random.SeedSequence:
    """Returns the seed sequence of the stream called `path`."""
    key = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    return np.random.SeedSequence(entropy=seed, spawn_key=key)


def generator(seed: int, *path: str | int) -> np.random.Generator:
    """Returns a numpy generator for the stream called `path`."""
    return np.random.Generator(np.random.PCG64(sequence(seed, *path)))


def torch_seed(seed: int, *path: str | int) -> int:
    """Returns a 63-bit seed for the stream called `path`."""
    return int(sequence(seed, *path).generate_state(1, np.uint64)[0] >> 1)


def env_seed(seed: int, *path: str | int) -> int:
    """Returns a 31-bit seed for the stream called `path`, as environments accept them."""
    return int(sequence(seed, *path).generate_state(1, np.uint32)[0] >> 1)


def generator_state(source: np.random.Generator) -> dict[str, Any]:
    """Returns the state of a PCG64 generator as JSON data (integers as text: they have 128 bits)."""
    state: Any = source.bit_generator.state
    numbers = {name: str(value) for name, value in state["state"].items()}
    return {**numbers, "has_uint32": int(state["has_uint32"]), "uinteger": int(state["uinteger"])}


def set_generator_state(target: np.random.Generator, state: dict[str, Any]) -> None:
    """Restores what `generator_state` returned."""
    target.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {name: int(state[name]) for name in ("state", "inc")},
        "has_uint32": state["has_uint32"],
        "uinteger": state["uinteger"],
    }
