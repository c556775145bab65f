"""Where a rank starts, and that its random streams continue on all ranks or on none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.algos import fast
from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore
from offpolicy.errors import CheckpointError
from offpolicy.replay.rate_limiter import LearningStart
from offpolicy.replay.row_saver import RowSaver
from offpolicy.training.learner_process import build_learner
from offpolicy.training.rank import Rank
from offpolicy.training.resume import RankState, TrainingStart, load_start
from offpolicy.training.tuning import Setting
from offpolicy.types import Float64
from tests.replay_scene import numbered_ring
from tests.unit.training.conftest import TINY, FakeWorld, MakeRank, tiny_learner


class FakeSource:
    """A batch source whose random state is a number."""

    def __init__(self, drawn: int = 0) -> None:
        self.drawn, self.first_unseen_row = drawn, [drawn]
        self.requests: list[Any] = [[2, None, 9]]

    def random_state(self) -> dict[str, Any]:
        return {"drawn": self.drawn, "requests": self.requests}

    def set_random_state(self, state: dict[str, Any]) -> None:
        self.drawn, self.requests = state["drawn"], state["requests"]


def state_of(
    rank: Rank, learner: Any, start: TrainingStart, *, drawn: int = 0, world: FakeWorld | None = None
) -> RankState:
    ring = numbered_ring(16, 8)
    return RankState(rank, world or FakeWorld(), learner, FakeSource(drawn), ["fake"], [ring], start)


def save(
    rank: Rank, *, env_steps: int = 40, drawn: int = 7, has_rows: bool = True, setting: Setting | None = None
) -> Any:
    """A checkpoint of a learner that has done five updates; returns the learner."""
    learner = tiny_learner(rank)
    learner.num_updates = 5
    start = TrainingStart(LearningStart(4, 0), 0, 0, learner.read_metrics(), None, "runs/teacher, env step 9")
    state = replace(state_of(rank, learner, start, drawn=drawn), setting=setting)
    rows = RowSaver(state.rings)
    with CheckpointStore(Path(rank.job.run_dir) / CHECKPOINTS).begin(env_steps) as draft:
        state.capture((env_steps, 5, 20), rows.capture() if has_rows else None, [], 0).write(draft, rows)
    return learner


def resumed(make_rank: MakeRank, world: FakeWorld | None = None) -> RankState:
    """The rank that goes on from the checkpoint."""
    rank = make_rank(start_step=40, checkpoint=40, **TINY)
    learner = tiny_learner(rank)
    return state_of(rank, learner, load_start(rank, FakeWorld(), learner), world=world)


@pytest.mark.promise("exact-resume")
def test_a_resumed_run_starts_where_its_checkpoint_was_saved(make_rank: MakeRank) -> None:
    saved = save(make_rank(**TINY))
    rank = make_rank(start_step=40, checkpoint=40, last_eval_step=20, **TINY)
    learner = tiny_learner(rank)
    start = load_start(rank, FakeWorld(), learner)
    assert (start.learning_start, start.updates, start.last_eval_step) == (LearningStart(4, 0), 5, 20)
    assert (learner.num_updates, start.teacher) == (5, "runs/teacher, env step 9")
    for name, tensor in learner.tensors().items():
        assert torch.equal(tensor, saved.tensors()[name]), name


def test_without_saved_rows_on_any_host_learning_starts_again_after_new_ones(make_rank: MakeRank) -> None:
    save(make_rank(**TINY))

    def other_host_without_rows(own: Float64) -> list[Float64]:
        row = own.copy()
        row[4] = 0.0
        return [row]

    rank = make_rank(start_step=40, checkpoint=40, **TINY)
    world = FakeWorld(2, other_host_without_rows)
    start = load_start(rank, world, tiny_learner(rank))
    assert start.learning_start == LearningStart(44, 5)


@pytest.mark.promise("exact-resume")
def test_random_streams_continue_where_the_checkpoint_has_them(make_rank: MakeRank) -> None:
    save(make_rank(**TINY), drawn=7)
    state = resumed(make_rank)
    state.resume_streams()
    assert (state.source.drawn, state.source.first_unseen_row) == (7, [7])  # type: ignore[attr-defined]
    assert state.rank.child.sent == []  # type: ignore[attr-defined]  # a fake child


@pytest.mark.parametrize("has_rows", [True, False])
def test_batches_that_were_asked_for_are_of_saved_rows_only(make_rank: MakeRank, has_rows: bool) -> None:
    """Each rank would see at another moment that there are rows again, and ranks must draw as many batches."""
    save(make_rank(**TINY), has_rows=has_rows)
    state = resumed(make_rank)
    state.source.requests = []  # type: ignore[attr-defined]  # a fake source
    state.resume_streams()
    assert state.source.requests == ([[2, None, 9]] if has_rows else [])  # type: ignore[attr-defined]
    assert state.source.drawn == 7  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("before", "asked_for", "after", "warning"),
    [
        ("auto", "auto", "fast", ""),
        ("textbook", "auto", "textbook", ""),
        (
            *("auto", "textbook", "textbook"),
            "updates had fast kernels before, and are textbook, because of algo.kernels=textbook",
        ),
        ("textbook", "fast", "fast", "updates had textbook kernels before, and are fast kernels"),
    ],
)
def test_updates_are_made_as_before_or_it_is_said_that_they_are_not(
    make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch, before: str, asked_for: str, after: str, warning: str
) -> None:
    monkeypatch.setattr(fast, "changed_module", lambda *_: "")  # also where somebody is changing SAC
    save(make_rank(**TINY | {"algo": TINY["algo"] | {"kernels": before}}))
    rank = make_rank(start_step=40, checkpoint=40, **TINY | {"algo": TINY["algo"] | {"kernels": asked_for}})
    learner = build_learner(rank, FakeWorld())
    warnings = [fields["text"] for kind, fields in rank.child.sent if kind == "warning"]  # type: ignore[attr-defined]
    assert learner.kernels == after
    if (before, asked_for) == ("textbook", "auto"):
        assert learner.why_textbook == "the checkpoint, whose updates were textbook"
    assert warnings == ([f"the continuation is not bitwise: {warning}"] if warning else [])


@pytest.mark.promise("ranks-together")
@pytest.mark.parametrize("own_flag", [0.0, 1.0])
def test_if_one_rank_cannot_continue_its_streams_none_does(make_rank: MakeRank, own_flag: float) -> None:
    save(make_rank(**TINY), drawn=7)
    state = resumed(make_rank, FakeWorld(1, lambda own: [np.ones(1)]))
    if own_flag:
        state.source_identity = ["another"]
    state.resume_streams()
    assert state.source.drawn == 0  # type: ignore[attr-defined]  # a fake source
    warnings = [fields["text"] for kind, fields in state.rank.child.sent if kind == "warning"]  # type: ignore[attr-defined]
    assert len(warnings) == int(own_flag)  # only the rank that cannot says why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"source_identity": ["another"]}, "the batches came from ['fake'] before"),
        ({"num_ranks": 2}, "1 learner ranks before, 2 now"),
        ({"checkpoint": None}, "learner rank 0 was not there when the checkpoint was saved"),
    ],
)
def test_what_keeps_a_continuation_from_being_exact_is_named(
    make_rank: MakeRank, change: dict[str, Any], why: str
) -> None:
    save(make_rank(**TINY))
    state = resumed(make_rank, FakeWorld(change.get("num_ranks", 1)))
    if "checkpoint" in change:
        state.start = replace(state.start, checkpoint=None)
    state.source_identity = change.get("source_identity", ["fake"])
    assert state.why_not_exact() == why


def test_a_checkpoint_that_another_run_has_removed_since_is_replaced_by_its_newest(make_rank: MakeRank) -> None:
    """A run that goes on keeps two. Before a learner is there to read one, a fast run may have saved twice."""
    rank = make_rank(**TINY)
    save(rank, env_steps=80)
    beginning = make_rank(init_from=rank.job.run_dir, **TINY)
    beginning.job = replace(beginning.job, origin_step=40)
    load_start(beginning, FakeWorld(), tiny_learner(beginning))
    ((kind, fields),) = beginning.child.sent  # type: ignore[attr-defined]  # a fake child
    assert kind == "warning"
    assert fields["text"].endswith("has removed its checkpoint of env step 40 since: that of 80 is taken")


def test_networks_with_nan_in_them_are_refused_by_name(make_rank: MakeRank) -> None:
    rank = make_rank(start_step=40, checkpoint=40, **TINY)
    learner = tiny_learner(rank)
    name = next(iter(learner.tensors()))
    with torch.no_grad():
        learner.tensors()[name].fill_(float("nan"))
    start = TrainingStart(LearningStart(4, 0), 0, 0, learner.read_metrics(), None, None)
    state = state_of(rank, learner, start)
    with CheckpointStore(Path(rank.job.run_dir) / CHECKPOINTS).begin(40) as draft:
        state.capture((40, 5, 20), None, [], 0).write(draft, RowSaver(()))
    with pytest.raises(CheckpointError, match=f"learner.safetensors: learner state: {name} holds NaN or Inf"):
        load_start(rank, FakeWorld(), tiny_learner(rank))
