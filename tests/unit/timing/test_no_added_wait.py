"""Measuring asks the device for nothing: real learners, through the real loop, with all timing and with none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from benchmarks.parts import overhead
from offpolicy.algos.learner import Learner
from offpolicy.algos.registry import make_learner
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.loop import Parts, train
from offpolicy.timing.device_timer import DeviceTimer, EventTimer
from offpolicy.timing.ledger import make_ledger
from offpolicy.timing.phases import LearnerPhase
from offpolicy.types import Batch, Batches, Rollouts, SpaceSpec

SPEC = SpaceSpec(3, 2, (-1.0,) * 2, (1.0,) * 2)
NUM_ITERATIONS = 12
WAITS = {
    "item": (torch.Tensor, "item"), "tolist": (torch.Tensor, "tolist"), "cpu": (torch.Tensor, "cpu"),
    "device": (torch.cuda, "synchronize"), "event": (torch.cuda.Event, "synchronize"),
    "stream": (torch.cuda.Stream, "synchronize"),
}  # fmt: skip


class Event:
    """An event of a device that is always done."""

    def record(self) -> None: ...
    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Event) -> float:
        return 1.5


class Everything:
    """Source, publisher, duties, world and stop signal of a loop that does nothing but learn."""

    env_steps, is_stopping = 0, False

    def __init__(self, material: Iterator[Batches | Rollouts], waits: Counter[str]) -> None:
        self._material, self._left, self._waits = material, NUM_ITERATIONS, waits

    def is_exhausted(self) -> bool:
        return self._left == 0

    def sample(self) -> Any:
        self._left -= 1

    def to_device(self, rows: Any) -> Any:
        return next(self._material)

    def wait(self) -> None:
        self._waits["device_sync"] += 1

    def agree(self, *, is_stopping: bool) -> bool:
        return is_stopping

    def run_last(self, *, is_complete: bool) -> bool:
        return is_complete

    def nothing(self) -> None: ...

    wait_ready = wait_batch = release = publish = run_if_due = is_due = nothing


def batches() -> Iterator[Batches]:
    rng = torch.Generator().manual_seed(0)
    while True:
        obs, next_obs = (torch.randn(16, 3, generator=rng) for _ in range(2))
        batch = Batch(obs, torch.rand(16, 2, generator=rng), obs[:, 0], next_obs, torch.zeros(16), torch.ones(16))
        yield Batches((batch, batch), obs)


def rollouts(learner: Learner) -> Iterator[Rollouts]:
    rng = torch.Generator().manual_seed(0)
    while True:
        obs = torch.randn(9, 4, 3, generator=rng)
        choices = [learner.policy.sample(obs[t], rng) for t in range(8)]
        columns = torch.zeros(8, 4), torch.zeros(8, 4), torch.ones(8, 4)
        log_prob = torch.stack([log_prob for _, log_prob in choices if log_prob is not None])
        yield Rollouts(obs, torch.stack([action for action, _ in choices]), log_prob, obs[1:, :, 0], *columns, 0.5)


def train_on_device(algo: AlgoConfig, waits: Counter[str], *, is_timed: bool) -> tuple[dict[str, Tensor], DeviceTimer]:
    """The state of a learner after `NUM_ITERATIONS`, and its device timer."""
    learner = make_learner(algo, SPEC, torch.device("cpu"), seed=3)
    does = Everything(rollouts(learner) if algo.name == "appo" else batches(), waits)
    ledger = make_ledger(LearnerPhase, is_enabled=is_timed)
    device_timer = EventTimer(does, ledger, cast(Any, Event)) if is_timed else DeviceTimer(does)
    parts = Parts(
        source=does, learner=learner, device_timer=device_timer,
        publisher=does, evaluator=does, checkpointer=does, reporter=does, measurements=iter(()), world=does,
        is_stopping=lambda: False, ledger=ledger,
    )  # fmt: skip
    assert train(parts)
    return learner.state().tensors, device_timer


@pytest.fixture
def count_waits(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Counter[str]]:
    """`count_waits()`: a new counter, which every call that waits for a device adds to from now on."""
    originals = {name: getattr(*place) for name, place in WAITS.items()}

    def begin() -> Counter[str]:
        counts = Counter[str]()
        for name, place in WAITS.items():

            def counted(*args: Any, _name: str = name, **kwargs: Any) -> Any:
                counts[_name] += 1
                return originals[_name](*args, **kwargs)

            monkeypatch.setattr(*place, counted)
        return counts

    return begin


@pytest.mark.promise("measuring-changes-nothing")
@pytest.mark.parametrize("name", ["sac", "td3", "appo"])
def test_timing_adds_no_wait_and_changes_no_parameter(name: str, count_waits: Callable[[], Counter[str]]) -> None:
    algo = AlgoConfig(name=name, hidden_dims=(16,), normalize_obs=True, **({"epochs": 2} if name == "appo" else {}))
    off = count_waits()
    plain, _ = train_on_device(algo, off, is_timed=False)
    on = count_waits()
    timed, device_timer = train_on_device(algo, on, is_timed=True)
    assert on == off
    assert on["device_sync"] == NUM_ITERATIONS
    assert all(torch.equal(timed[key], tensor) for key, tensor in plain.items())
    totals = device_timer.totals()
    assert totals is not None
    assert totals[:2] == ((NUM_ITERATIONS - 1) * 1_500_000,) * 2
    assert totals.iterations == NUM_ITERATIONS - 1


@pytest.mark.promise("measuring-is-cheap")
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_timing_takes_less_than_a_percent_of_an_update() -> None:
    limited = [measurement for measurement in overhead.measure(rounds=1) if measurement.limit is not None]
    assert len(limited) == 2
    for measurement in limited:
        assert not measurement.is_over, f"{measurement.name}: {measurement.spread}"
