"""Benchmarks confine their process to few cores, set torch's threads and write results: all undone here."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import results


@pytest.fixture
def results_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of results of this test alone, with cores and threads as they were when it ends."""
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    yield tmp_path / "results"
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(threads)
    gc.unfreeze()
