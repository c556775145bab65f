"""The three file formats of a checkpoint: safetensors, JSON and raw float32 rows.

None of them can execute anything. Writers take a directory and a plain name and append the format's suffix, so a
collector writes its own files into a draft with the same functions as the learner. Nothing is fsynced here: the
commit does that for every file at once.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from offpolicy.checkpoint.disk import Disk
from offpolicy.errors import CheckpointError, SaveError
from offpolicy.types import Float32

Array = NDArray[Any]  # Any: tensors of every dtype in `DTYPES`

TENSORS, JSON, ROWS = ".safetensors", ".json", ".f32"
SUFFIXES = (TENSORS, JSON, ROWS)
DTYPES = frozenset(
    ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
)
MAX_JSON_BYTES = 16 << 20
MAX_JSON_DEPTH = 64
MAX_HEADER_BYTES = 16 << 20  # of a safetensors file
CHUNK_BYTES = 8 << 20

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
# Possessive, and content with an unclosed quote still matches: hostile input costs linear time.
_JSON_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def write_tensors(directory: Path, name: str, tensors: Mapping[str, Array], disk: Disk | None = None) -> None:
    """Write `<name>.safetensors`. Raises `SaveError` when the disk refuses, `ValueError` on an unknown dtype."""
    for key, tensor in tensors.items():
        if tensor.dtype.name not in DTYPES:
            raise ValueError(
                f"{name}{TENSORS}: tensor {key!r} is {tensor.dtype.name}, allowed {', '.join(sorted(DTYPES))}"
            )
    # safetensors copies from the base pointer and ignores strides: a transposed view would be saved scrambled.
    dense = {key: np.asarray(tensor, order="C") for key, tensor in tensors.items()}
    content = safetensors.numpy.save(dense)
    if _header_bytes(content[:8]) > MAX_HEADER_BYTES:
        raise ValueError(f"{name}{TENSORS}: {len(dense)} tensors need a header of over {MAX_HEADER_BYTES} bytes")
    _write(directory, name + TENSORS, iter([content]), disk)


def write_json(directory: Path, name: str, value: Any, disk: Disk | None = None) -> None:  # Any: a JSON value
    """Write `<name>.json`. Raises `SaveError` when the disk refuses, `ValueError` on what JSON cannot hold: NaN too."""
    try:
        content = json.dumps(value, allow_nan=False).encode()
        parse_json(content)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name}{JSON}: {error}") from error
    _write(directory, name + JSON, iter([content]), disk)


def write_rows(directory: Path, name: str, *blocks: Float32, disk: Disk | None = None) -> None:
    """Write `<name>.f32`: blocks of shape [rows, width] one after the other, little-endian, with no header.

    A block may be a view of several GB: it is written in chunks of `CHUNK_BYTES`. Raises `SaveError` when the disk
    refuses, `ValueError` when a block is not float32 [rows, width].
    """
    widths = {block.shape[1:] for block in blocks}
    if len(widths) != 1 or any(block.ndim != 2 or block.dtype != np.float32 for block in blocks):
        got = ", ".join(f"{block.dtype}{list(block.shape)}" for block in blocks)
        raise ValueError(f"{name}{ROWS}: got {got or 'nothing'}, allowed float32 [rows, width] of one width")
    _write(directory, name + ROWS, (chunk for block in blocks for chunk in _chunks(block)), disk)


def read_tensors(path: Path) -> dict[str, Array]:
    """The tensors of a `.safetensors` file. Raises `CheckpointError`."""
    try:
        with path.open("rb") as file:
            size = _header_bytes(file.read(8))
        if size > MAX_HEADER_BYTES:
            raise CheckpointError(f"{path}: header of {size} bytes, allowed {MAX_HEADER_BYTES}")
        return safetensors.numpy.load_file(path)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file: {error}") from error


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:  # Any: a JSON value
    """The value of a `.json` file of bounded size and nesting. Raises `CheckpointError`."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):  # opening a FIFO would block for ever
            raise CheckpointError(f"{path}: not a regular file")
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise CheckpointError(f"{path}: larger than {max_bytes} bytes")
        return parse_json(content)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable JSON: {error}") from error


def read_rows(path: Path, width: int) -> Float32:
    """The rows of a `.f32` file as a read-only map of shape [rows, width]. Raises `CheckpointError`."""
    try:
        size = path.stat().st_size
        if width < 1 or size % (4 * width):
            raise CheckpointError(f"{path}: {size} bytes are no whole number of rows of {width} float32")
        if size == 0:  # an empty file cannot be mapped
            return np.frombuffer(b"", dtype="<f4").reshape(0, width)
        return np.memmap(path, dtype="<f4", mode="r", shape=(size // (4 * width), width))
    except OSError as error:
        raise CheckpointError(f"{path}: {error}") from error


def is_plain_name(name: str) -> bool:
    """Whether this is a bare file name with no way out of its directory."""
    return _NAME.fullmatch(name) is not None


def parse_json(content: bytes) -> Any:  # Any: a JSON value
    """Parse with bounded size and nesting and without NaN. Raises `ValueError`."""
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(f"{len(content)} bytes, allowed {MAX_JSON_BYTES}")
    depth = _json_depth(content)
    if depth > MAX_JSON_DEPTH:
        raise ValueError(f"nested {depth} deep, allowed {MAX_JSON_DEPTH}")
    return json.loads(content, parse_constant=_refuse_constant)


def _json_depth(content: bytes) -> int:
    """The deepest nesting, counted before the parser sees it: the parser itself recurses."""
    symbols = np.frombuffer(_JSON_STRING.sub(b"", content), dtype=np.uint8)
    opened = np.isin(symbols, (ord("["), ord("{"))).astype(np.int8)
    closed = np.isin(symbols, (ord("]"), ord("}"))).astype(np.int8)
    return int(np.cumsum(opened - closed, dtype=np.int64).max(initial=0))


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _header_bytes(prefix: bytes) -> int:
    return int.from_bytes(prefix, "little")


def _chunks(block: Float32) -> Iterator[memoryview]:
    rows = max(1, CHUNK_BYTES // max(1, 4 * block.shape[1]))
    for start in range(0, len(block), rows):
        yield np.ascontiguousarray(block[start : start + rows], dtype="<f4").data


def _write(directory: Path, file_name: str, blocks: Iterator[bytes | memoryview], disk: Disk | None) -> None:
    if not is_plain_name(file_name):
        raise ValueError(f"{file_name!r}: allowed letters, digits, '.', '_' and '-', beginning with a letter or digit")
    try:
        (disk or Disk()).write(directory / file_name, blocks)
    except OSError as error:
        raise save_error(directory / file_name, error) from error


def save_error(path: Path, error: OSError) -> SaveError:
    """The error of a refused save: what could not be written, and why."""
    cause = os.strerror(error.errno) if error.errno is not None else str(error)
    return SaveError(f"{path}: {cause}; the older checkpoints are untouched")
