"""Which batch source a rank gets, and what it is built from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from offpolicy.processes.shared_memory import WakeEvent
from offpolicy.replay.prefetch_source import PrefetchSource
from offpolicy.replay.rate_limiter import LearningStart
from offpolicy.replay.replay_source import ReplaySource
from offpolicy.replay.resident_source import ResidentSource
from offpolicy.training.batch_sources import Replay, configured_source, demonstrations, rollout_source
from offpolicy.training.rank import Rank
from offpolicy.training.resume import TrainingStart
from offpolicy.types import MetricTotals
from tests.unit.training.conftest import FakeWorld, MakeRank

SMALL = {"algo": {"batch_size": 8, "learning_starts": 8}, "total_timesteps": 100}
NO_METRICS = MetricTotals((), np.zeros(0), np.zeros(0))
FRESH = TrainingStart(LearningStart(8, 0), 0, 0, NO_METRICS, None, None)


def replay_of(rank: Rank) -> Replay:
    rank.child.wake_event = lambda name: WakeEvent.create()  # type: ignore[method-assign]  # a fake child
    return Replay.open(rank, FakeWorld(), FRESH)


@pytest.mark.parametrize(
    ("source", "kind"),
    [("auto", ReplaySource), ("direct", ReplaySource), ("prefetch", PrefetchSource), ("resident", ResidentSource)],
)
def test_on_a_cpu_auto_samples_directly_and_a_named_source_is_kept(
    make_rank: MakeRank, source: str, kind: type[object]
) -> None:
    chosen = configured_source(replay_of(make_rank(**SMALL, replay={"source": source})))
    assert type(chosen) is kind
    chosen.close()


def test_every_observation_is_taken_by_one_rank(make_rank: MakeRank) -> None:
    tree = {
        **SMALL,
        "algo": {"normalize_obs": True, "batch_size": 8, "learning_starts": 8},
        "runner": {"name": "multi_gpu", "world_size": 2},
        "collect": {"num_collectors": 3},
    }
    assert [replay_of(make_rank(index=i, **tree)).source_spec.fresh_rings for i in (0, 1)] == [(0, 2), (1,)]
    assert replay_of(make_rank(**SMALL)).source_spec.fresh_rings == ()


def test_ranks_divide_the_batch(make_rank: MakeRank) -> None:
    tree = {**SMALL, "runner": {"name": "multi_gpu", "world_size": 2}}
    assert replay_of(make_rank(**tree)).source_spec.batch_size == 4


def test_a_rank_learns_from_the_rollouts_of_its_own_collectors(make_rank: MakeRank) -> None:
    tree = {
        "algo": {"name": "appo"},
        "runner": {"name": "appo", "world_size": 2},
        "collect": {"num_collectors": 4},
        "rollout": {"length": 8},
    }
    rank = make_rank(index=1, **tree)
    rollout_source(rank, FakeWorld(2))
    assert sorted(rank.child.blocks) == ["rollouts-1", "rollouts-3"]  # type: ignore[attr-defined]  # a fake child


def test_rank_0_answers_for_all_that_was_learnt_before(make_rank: MakeRank) -> None:
    tree = {"algo": {"name": "appo"}, "runner": {"name": "appo", "world_size": 2}, "collect": {"num_collectors": 2}}
    ranks = [make_rank(index=index, start_step=40, **tree) for index in (0, 1)]
    sources = [rollout_source(rank, FakeWorld(2)) for rank in ranks]
    assert [source.random_state() for source in sources] == [{"learnt": 40}, {"learnt": 0}]


@pytest.fixture
def demos(tmp_path: Path) -> str:
    """The path of an episode of ten steps."""
    row = np.arange(10, dtype=np.float32)
    obs = np.repeat(row[:, None], 4, axis=1)
    given = dict.fromkeys(("obs", "next_obs"), obs) | {"action": np.zeros((10, 2)), "reward": row}
    np.savez(tmp_path / "demos.npz", **given, terminated=row == 9, truncated=row < 0)
    return str(tmp_path / "demos.npz")


def test_each_rank_mixes_its_part_of_the_demonstrations_in(make_rank: MakeRank, demos: str) -> None:
    tree = {**SMALL, "runner": {"name": "multi_gpu", "world_size": 2}}
    share = demonstrations(make_rank(**tree, replay={"demos": demos, "demo_share": 0.5}))
    assert share is not None
    assert (share.per_batch, share.batch_size) == (2, 4)


def test_a_resume_that_lost_its_place_in_the_demonstrations_takes_another_order(
    make_rank: MakeRank, demos: str
) -> None:
    heads = set()
    for start_step in (0, 300, 400):
        share = demonstrations(make_rank(start_step=start_step, replay={"demos": demos}))
        assert share is not None
        heads.add(tuple(share.take(10).tolist()))
    assert len(heads) == 3
