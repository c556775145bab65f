"""The parts that every learner rank is assembled from, and one whole training on fakes of everything around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from offpolicy.processes.control_page import RankWord
from offpolicy.training.learner_process import build_learner, train_rank
from offpolicy.training.resume import load_start
from offpolicy.types import NO_ACCOUNT, Account, Batch, Batches
from tests.unit.training.conftest import TINY, FakeWorld, MakeRank


class FakeSource:
    """Hands out three batches of four rows."""

    kind = "direct"
    samples, sample_age_sum, rollouts, has_batch_wait = 0, 0.0, None, False

    def __init__(self) -> None:
        self.first_unseen_row = [0]
        self.left, self.is_closed = 3, False

    def wait_ready(self) -> None: ...
    def wait_batch(self) -> None: ...
    def release(self) -> None: ...

    def is_exhausted(self) -> bool:
        return self.left == 0

    def sample(self) -> torch.Tensor:
        self.left -= 1
        return torch.zeros(0)

    def to_device(self, rows: torch.Tensor) -> Batches:
        column = torch.zeros(4)
        batch = Batch(torch.ones(4, 4), torch.zeros(4, 2), column, torch.ones(4, 4), column, column + 0.99)
        return Batches((batch,), None)

    def random_state(self) -> dict[str, Any]:
        return {}

    def describe(self) -> str:
        return "replay source: fake"

    def packer_account(self) -> Account:
        return NO_ACCOUNT

    def close(self) -> None:
        self.is_closed = True


def test_a_rank_trains_until_its_source_is_exhausted(make_rank: MakeRank) -> None:
    rank = make_rank(eval={"episodes": 0}, timing={"enabled": False}, collect={"num_collectors": 1}, **TINY)
    rank.gate.has_snapshot = False  # type: ignore[attr-defined]  # no collectors: nothing to save
    world, source = FakeWorld(), FakeSource()
    learner = build_learner(rank, world)
    before = {name: tensor.clone() for name, tensor in learner.policy.state_dict().items()}
    train_rank(rank, world, learner, source, load_start(rank, world, learner))
    kinds = [kind for kind, _ in rank.child.sent]  # type: ignore[attr-defined]  # a fake child
    assert [kind for kind in kinds if kind != "activity"] == ["hello", "done"]
    assert (learner.num_updates, rank.words[RankWord.UPDATES], rank.words[RankWord.VERSION]) == (3, 3, 4)
    assert source.is_closed
    after = learner.policy.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert np.isfinite(np.concatenate([tensor.numpy().ravel() for tensor in after.values()])).all()


def test_a_timed_rank_reports_the_work_of_its_updates_and_then_what_the_machine_attains(make_rank: MakeRank) -> None:
    rank = make_rank(eval={"episodes": 0}, collect={"num_collectors": 1}, threads={"learner": 1}, **TINY)
    rank.gate.has_snapshot = False  # type: ignore[attr-defined]  # no collectors: nothing to save
    world = FakeWorld()
    learner = build_learner(rank, world)
    train_rank(rank, world, learner, FakeSource(), load_start(rank, world, learner))
    first, second = [fields for kind, fields in rank.child.sent if kind == "flops"]  # type: ignore[attr-defined]
    assert first["attainable_per_sec"] is None
    assert second["attainable_per_sec"] > 0
    assert first["per_update"] == second["per_update"] > 16 * first["per_decision"] > 0
