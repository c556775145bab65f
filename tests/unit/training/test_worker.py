"""Every process gets its specification as JSON, sets up torch alike and opens its time account at its birth."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.timing.phases import CollectorPhase
from offpolicy.training.worker import HostPlan, WorkerSpec, start_worker
from offpolicy.types import SpaceSpec
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


SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6)


def config(**tree: object) -> RunConfig:
    return RunConfig.from_mapping(tree)


def test_a_worker_spec_survives_its_way_through_json() -> None:
    host = HostInfo(index=1, num_hosts=2, store_host="10.0.0.1", store_port=29400, is_store_ours=False, job="a")
    plan = HostPlan(has_evaluator=True, learner_threads=3, collector_threads=1)
    job = WorkerSpec(config(), SPEC, plan, host, "/somewhere", 400, 400, 29400)

    class Context:
        payload = json.loads(json.dumps(job.to_json()))

    assert WorkerSpec.of(Context()) == job  # type: ignore[arg-type]
