"""The parts that every learner rank is assembled from, and one whole training on fakes of everything around it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.algos.flops import Work
from offpolicy.algos.optim import SoloExchange
from offpolicy.processes.control_page import RankWord
from offpolicy.replay.rate_limiter import LearningStart
from offpolicy.timing.attainable import Attainable
from offpolicy.timing.chrome_trace import NoProfiler, Profiler
from offpolicy.training import learner_process
from offpolicy.training.device_exchange import ExchangeOutsideTrain
from offpolicy.training.evaluators import AsyncEvaluator, InlineEvaluator
from offpolicy.training.learner_process import build_learner, make_profiler, periodic_evaluation, send_hello, train_rank
from offpolicy.training.resume import RankState, TrainingStart, load_start
from offpolicy.training.speed_tuner import Setting
from offpolicy.training.weight_publisher import WeightPublisher
from offpolicy.types import Batch, Batches, Direction, Product
from tests.unit.training.conftest import TINY, FakeWorld, MakeRank, ranks_of, tiny_learner

TWO_RANKS = {"runner": {"name": "multi_gpu", "world_size": 2}}


@pytest.mark.parametrize(
    ("index", "has_evaluator", "episodes", "kind"),
    [(0, False, 1, InlineEvaluator), (0, True, 1, AsyncEvaluator), (0, False, 0, None), (1, True, 1, None)],
)
def test_rank_0_evaluates_itself_unless_a_process_does(
    make_rank: MakeRank, index: int, has_evaluator: bool, episodes: int, kind: type[object] | None
) -> None:
    rank = make_rank(index=index, has_evaluator=has_evaluator, eval={"episodes": episodes}, **TWO_RANKS, **TINY)
    rank.child.wake_event = lambda name: None  # type: ignore[method-assign, return-value, assignment]  # a fake child
    learner = tiny_learner(rank)
    publisher = WeightPublisher(rank, learner)
    start = TrainingStart(LearningStart(4, 0), 5, 0, 30, learner.read_metrics(), None, None)
    evaluation = periodic_evaluation(rank, ranks_of(FakeWorld()), learner, publisher, start)
    evaluator = evaluation._evaluator
    assert evaluator is None if kind is None else type(evaluator) is kind
    for learner.num_updates, is_behind in ((29, True), (30, False)):
        assert evaluation._is_behind() == is_behind
    evaluation.close()


def test_only_rank_0_of_a_traced_run_is_profiled(make_rank: MakeRank) -> None:
    tree = {"timing": {"trace": True, "profile_at": 5}, **TWO_RANKS}
    rank, other = make_rank(**tree), make_rank(index=1, **tree)
    for context in (rank, other):
        object.__setattr__(context.job, "trace_dir", context.job.run_dir)
    assert isinstance(make_profiler(rank), Profiler)
    assert isinstance(make_profiler(other), NoProfiler)
    assert isinstance(make_profiler(make_rank()), NoProfiler)


@pytest.mark.parametrize(
    ("device", "num_ranks", "is_outside"), [("cuda", 2, True), ("cuda", 1, False), ("cpu", 2, False)]
)
def test_the_exchange_of_several_ranks_is_no_device_time_of_the_update(
    make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch, device: str, num_ranks: int, is_outside: bool
) -> None:
    class Peers(SoloExchange):
        pass

    Peers.num_ranks = num_ranks  # type: ignore[misc, assignment]  # a property
    given: list[object] = []
    monkeypatch.setattr(learner_process, "make_learner", lambda *args: given.append(args[4]))
    rank, ranks = make_rank(**TINY), ranks_of(FakeWorld(num_ranks))
    build_learner(dataclasses.replace(rank, device=torch.device(device)), dataclasses.replace(ranks, exchange=Peers()))
    assert [type(exchange) for exchange in given] == [ExchangeOutsideTrain if is_outside else Peers]


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

    def packer_account(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(("mode", "expected"), [("auto", "overlap"), ("alternate", "alternate")])
def test_the_hello_names_the_mode_of_the_checkpoint_where_the_run_chooses_it(
    make_rank: MakeRank, mode: str, expected: str
) -> None:
    rank = make_rank(eval={"episodes": 0}, timing={"enabled": False}, collect={"mode": mode}, **TINY)
    ranks = ranks_of(FakeWorld())
    learner = build_learner(rank, ranks)
    state = RankState(rank, ranks, learner, FakeSource(), {}, (), load_start(rank, ranks, learner))
    state.choice.setting = Setting(2, "overlap")
    send_hello(state, {})
    ((kind, message),) = rank.child.sent  # type: ignore[attr-defined]  # a fake child
    assert (kind, message["mode"]) == ("hello", expected)


def test_a_rank_trains_until_its_source_is_exhausted(make_rank: MakeRank) -> None:
    rank = make_rank(eval={"episodes": 0}, timing={"enabled": False}, collect={"num_collectors": 1}, **TINY)
    rank.gate.has_snapshot = False  # type: ignore[attr-defined]  # no collectors: nothing to save
    ranks, source = ranks_of(FakeWorld()), FakeSource()
    learner = build_learner(rank, ranks)
    before = {name: tensor.clone() for name, tensor in learner.policy.state_dict().items()}
    train_rank(rank, ranks, learner, source, load_start(rank, ranks, learner))
    kinds = [kind for kind, _ in rank.child.sent]  # type: ignore[attr-defined]  # a fake child
    assert [kind for kind in kinds if kind != "activity"] == ["hello", "done"]
    assert (learner.num_updates, rank.words.get(RankWord.UPDATES), rank.words.get(RankWord.VERSION)) == (3, 3, 4)
    assert source.is_closed
    after = learner.policy.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert np.isfinite(np.concatenate([tensor.numpy().ravel() for tensor in after.values()])).all()


def test_a_profile_that_cannot_be_written_is_a_warning_of_a_complete_run(make_rank: MakeRank) -> None:
    timing = {"trace": True, "profile_at": 1, "profile_iterations": 1}
    rank = make_rank(eval={"episodes": 0}, timing=timing, collect={"num_collectors": 1}, **TINY)
    rank.gate.has_snapshot = False  # type: ignore[attr-defined]  # no collectors: nothing to save
    object.__setattr__(rank.job, "trace_dir", f"{rank.job.run_dir}/deleted")
    ranks = ranks_of(FakeWorld())
    learner = build_learner(rank, ranks)
    train_rank(rank, ranks, learner, FakeSource(), load_start(rank, ranks, learner))
    sent = rank.child.sent  # type: ignore[attr-defined]  # a fake child
    warnings = [fields["text"] for kind, fields in sent if kind == "warning" and "profile.json" in fields["text"]]
    assert (len(warnings), sent[-1][0]) == (1, "done")


@pytest.mark.parametrize(
    ("by_onednn", "compile_mode", "expected"),
    [(True, "off", "onednn"), (False, "off", "blas"), (True, "reduce-overhead", "blas")],
)
def test_the_library_that_makes_the_products_is_known(
    make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch, by_onednn: bool, compile_mode: str, expected: str
) -> None:
    wide = Product(Direction.FORWARD, 8, 256, 256, per_update=1.0, is_onednn=by_onednn)
    measured: list[tuple[Product, ...]] = []

    def attain(products: tuple[Product, ...], *_: object) -> Attainable:
        measured.append(products)
        return Attainable({1: 1e9}, 1.0)

    monkeypatch.setattr(learner_process, "count_work", lambda *_: Work(1.0, 1.0, (wide,)))
    monkeypatch.setattr(learner_process, "remembered_attainable", attain)
    found = learner_process.measure_flops(make_rank(algo={"compile": compile_mode}))
    assert found["library"] == expected
    assert [one.is_onednn for (one,) in measured] == [expected == "onednn"]


@pytest.mark.parametrize("kind", [RuntimeError, AssertionError, ZeroDivisionError])
def test_work_that_cannot_be_counted_is_a_warning(
    kind: type[Exception], make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise kind("no such rows")

    monkeypatch.setattr(learner_process, "count_work", fail)
    rank = make_rank()
    assert learner_process.measure_flops(rank) == {}
    warning = ("warning", {"text": f"perf/flops_per_sec is not known: {kind.__name__}: no such rows"})
    assert rank.child.sent == [warning]  # type: ignore[attr-defined]  # a fake child
