"""Every process sets up torch alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from offpolicy.timing.phases import CollectorPhase
from offpolicy.training.worker import start_worker
from tests.unit.training.conftest import MakeRank


@pytest.fixture(autouse=True)
def torch_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


@pytest.mark.parametrize(("role", "is_flushed"), [("learner", True), ("evaluator", True), ("collector", False)])
def test_denormals_are_flushed_where_no_environment_trains(make_rank: MakeRank, role: str, is_flushed: bool) -> None:
    start_worker(make_rank().job, role, 0, CollectorPhase, threads=1)
    assert torch.get_num_threads() == 1
    assert ((torch.tensor([1e-40]) * 0.5).item() == 0.0) == is_flushed
