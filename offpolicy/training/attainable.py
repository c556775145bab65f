"""How fast the learner could compute at best: measured once per machine and configuration, then remembered on disk.

One small file per key in `$OFFPOLICY_CACHE`, else `$XDG_CACHE_HOME/offpolicy`, else `~/.cache/offpolicy`. No home, a
directory that cannot be written, or a file that makes no sense costs another measurement and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from offpolicy.files import atomic_write
from offpolicy.logger.summary import cpu_model
from offpolicy.nets.flops import products_of
from offpolicy.timing.attainable import attainable_flops_per_sec
from offpolicy.training.rank_context import RankContext

Key = dict[str, Any]  # Any: plain JSON values


def attainable(rank: RankContext) -> float | None:
    """FLOP/s of the products of this run's updates on their own; None where it is not known.

    Only rank 0 of a timed run measures: `perf/flops_per_sec` is its. A machine too busy to measure now may be quieter
    when the next run starts.
    """
    if rank.rank != 0 or not rank.cfg.timing.enabled:
        return None
    products = products_of(rank.cfg, rank.job.spec, rank.job.place.num_hosts)

    def measure() -> float | None:
        with contextlib.suppress(RuntimeError):  # no memory, or no cuBLAS: the run itself may do all the same
            return attainable_flops_per_sec(products, rank.device, rank.fence)
        return None

    return remembered(key_of(rank.device, [list(product) for product in products]), measure)


def key_of(device: torch.device, products: list[list[Any]]) -> Key:
    """What the number depends on."""
    return {
        "processor": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model(),
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "dtype": "float32",
        "precision": torch.get_float32_matmul_precision(),
        "torch": torch.__version__,
        "products": products,
    }


def remembered(key: Key, measure: Callable[[], float | None]) -> float | None:
    """The number under `key`, measured if it is not on disk."""
    directory = cache_directory()
    if directory is None:
        return measure()
    path = directory / f"attainable-{_digest(key)}.json"
    known = _read(path, key)
    if known is not None:
        return known
    measured = measure()
    if measured is not None:
        _write(path, {"key": key, "flops_per_sec": measured})
    return measured


def cache_directory() -> Path | None:
    """Where such files lie; None for a user without a home, and never below the working directory unasked."""
    if told := os.environ.get("OFFPOLICY_CACHE"):
        return Path(told)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "offpolicy" if os.path.isabs(home) else None


def _digest(key: Key) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]


def _read(path: Path, key: Key) -> float | None:
    """The number of an intact file of this key."""
    try:
        content = json.loads(path.read_text())
        known = float(content["flops_per_sec"]) if content["key"] == key else math.nan
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return known if math.isfinite(known) and known > 0 else None


def _write(path: Path, content: dict[str, Any]) -> None:
    """All of the file or nothing; another run may write the same one at the same time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(content), durable=False)
