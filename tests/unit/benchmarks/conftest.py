"""Benchmarks confine their process to few cores, set torch's threads and write results: all undone here."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import journal, results


@pytest.fixture
def results_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of results of this test alone, at a commit without changes; cores and threads are as they were."""
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(results, "commit", lambda: "abc")
    monkeypatch.setattr(journal, "commit", lambda: "abc")
    monkeypatch.setattr(journal, "look", lambda cores: 0.0)
    yield tmp_path / "results"
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(threads)
    gc.unfreeze()
