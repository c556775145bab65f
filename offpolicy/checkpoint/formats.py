"""The three file formats of a checkpoint: safetensors, JSON and raw float32 rows.

None of them can execute anything. Writers take a directory and a plain name and append the format's suffix, so a
collector writes its own files into a draft with the same functions as the learner. Nothing is fsynced here: the
commit does that for every file at once.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from offpolicy.errors import CheckpointError, SaveError
from offpolicy.files import Disk
from offpolicy.types import Float32

Array = NDArray[Any]  # Any: tensors of every dtype in `DTYPES`

TENSORS, JSON, ROWS = ".safetensors", ".json", ".f32"
SUFFIXES = (TENSORS, JSON, ROWS)
DTYPES = frozenset(
    ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
)
JSON_BYTES = 16 << 20  # of a JSON file that grows neither with the environments nor with the run
CHUNK_BYTES = 8 << 20  # bytes of a block that are written at once

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def write_tensors(directory: Path, name: str, tensors: Mapping[str, Array], disk: Disk | None = None) -> None:
    """Writes `<name>.safetensors`. Raises `SaveError` when the disk refuses, `ValueError` on an unknown dtype."""
    for key, tensor in tensors.items():
        if tensor.dtype.name not in DTYPES:
            raise ValueError(
                f"{name}{TENSORS}: tensor {key!r} is {tensor.dtype.name}, allowed {', '.join(sorted(DTYPES))}"
            )
    # safetensors copies from the base pointer and ignores strides: a transposed view would be saved scrambled.
    dense = {key: np.asarray(tensor, order="C") for key, tensor in tensors.items()}
    _write(directory, name + TENSORS, [safetensors.numpy.save(dense)], disk)


def write_json(directory: Path, name: str, value: Any, disk: Disk | None = None) -> None:  # Any: a JSON value
    """Writes `<name>.json`. Raises `SaveError` when the disk refuses, `ValueError` on a value such as NaN."""
    try:
        content = json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name}{JSON}: {error}") from error
    _write(directory, name + JSON, [content], disk)


def write_rows(directory: Path, name: str, blocks: Iterable[Float32], disk: Disk | None = None) -> None:
    """Writes `<name>.f32`: blocks of shape [rows, width] one after the other, little-endian, with no header.

    Each is taken when those before it are written. A block may be a view of several GB: it is written in chunks of
    `CHUNK_BYTES`. Raises `SaveError` when the disk refuses, `ValueError` when a block is not float32 [rows, width].
    """
    checked = _of_one_width(name + ROWS, blocks)
    _write(directory, name + ROWS, (chunk for block in checked for chunk in _chunks(block)), disk)


def read_tensors(path: Path) -> dict[str, Array]:
    """Returns the tensors of a `.safetensors` file. Raises `CheckpointError`."""
    try:
        return safetensors.numpy.load_file(path)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file: {error}") from error


def read_json(path: Path, most_bytes: int | None = JSON_BYTES) -> Any:  # Any: a JSON value
    """Returns the value of a `.json` file of at most `most_bytes`, without NaN or Inf. Raises `CheckpointError`."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path}: expected a regular file, got mode {stat.filemode(status.st_mode)}")
        if most_bytes is not None and status.st_size > most_bytes:
            raise CheckpointError(f"{path}: got {status.st_size} bytes, allowed at most {most_bytes}")
        return json.loads(path.read_bytes(), parse_constant=_refuse_constant, parse_float=_finite)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable JSON: {error}") from error


def read_rows(path: Path, width: int) -> Float32:
    """Returns the rows of a `.f32` file as a read-only map of shape [rows, width]. Raises `CheckpointError`."""
    try:
        size = path.stat().st_size
        if width < 1 or size % (4 * width):
            raise CheckpointError(f"{path}: {size} bytes are no whole number of rows of {width} float32")
        if size == 0:  # an empty file cannot be mapped
            return np.frombuffer(b"", dtype="<f4").reshape(0, width)
        return np.memmap(path, dtype="<f4", mode="r", shape=(size // (4 * width), width))
    except OSError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"got {name}, allowed finite numbers")


def _finite(text: str) -> float:
    """Returns a number; JSON has some that a float cannot hold, such as 1e999."""
    number = float(text)
    return number if math.isfinite(number) else _refuse_constant(text[:40])


def is_plain_name(name: str) -> bool:
    """True for a bare file name with no way out of its directory."""
    return _NAME.fullmatch(name) is not None


def _of_one_width(file_name: str, blocks: Iterable[Float32]) -> Iterator[Float32]:
    width: tuple[int, ...] | None = None
    for block in blocks:
        width = block.shape[1:] if width is None else width
        if block.ndim != 2 or block.dtype != np.float32 or block.shape[1:] != width:
            got = f"{block.dtype}{list(block.shape)}"
            raise ValueError(f"{file_name}: got {got}, allowed float32 [rows, width] of one width")
        yield block


def _chunks(block: Float32) -> Iterator[memoryview]:
    rows = max(1, CHUNK_BYTES // max(1, 4 * block.shape[1]))
    for start in range(0, len(block), rows):
        yield np.ascontiguousarray(block[start : start + rows], dtype="<f4").data


def _write(directory: Path, file_name: str, blocks: Iterable[bytes | memoryview], disk: Disk | None) -> None:
    if not is_plain_name(file_name):
        raise ValueError(f"{file_name!r}: allowed letters, digits, '.', '_' and '-', beginning with a letter or digit")
    try:
        (disk or Disk()).write(directory / file_name, blocks)
    except OSError as error:
        raise save_error(directory / file_name, error) from error


def save_error(path: Path, error: OSError) -> SaveError:
    """Returns the error of a refused save: what could not be written, and why."""
    cause = os.strerror(error.errno) if error.errno is not None else str(error)
    return SaveError(f"{path}: {cause}; the older checkpoints are untouched")
