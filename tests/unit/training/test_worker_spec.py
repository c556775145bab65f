"""The specification of a process travels as JSON."""

from __future__ import annotations

import json

from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.training.worker_spec import HostPlan, WorkerSpec
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6)
ONE_THREAD = {"threads": {"learner": 1}}


def config(**tree: object) -> RunConfig:
    return RunConfig.from_mapping(tree)


def test_a_worker_spec_survives_its_way_through_json() -> None:
    place = HostInfo(host=1, num_hosts=2, store_host="10.0.0.1", store_port=29400, is_store_ours=False, job="a")
    plan = HostPlan(has_evaluator=True, learner_threads=3, collector_threads=1)
    job = WorkerSpec(config(), SPEC, plan, place, "/somewhere", 400, 400, 29400)

    class Context:
        payload = json.loads(json.dumps(job.to_json()))

    assert WorkerSpec.of(Context()) == job  # type: ignore[arg-type]
