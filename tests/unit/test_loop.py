"""THE loop: the order of its calls is a tape, and every call lands in its phase."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from offpolicy.loop import Parts, train
from offpolicy.timing.device_timer import DeviceTimer
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import LearnerPhase
from tests.fakes import FakeClock


class Tape:
    """Fakes of every part: each call is written down and takes a time of its own."""

    COST_NS = {
        "wait_ready": 1, "agree": 10, "wait_batch": 100, "sample": 1000, "to_device": 10_000, "update": 10**5,
        "device_sync": 10**6, "publish": 10**7, "release": 10**8, "eval": 10**9, "save": 10**10, "report": 10**11,
        "measure": 10**12,
    }  # fmt: skip

    def __init__(self, iterations: int, stop_at: int | None = None) -> None:
        self.calls: list[str] = []
        self.clock = FakeClock()
        self._left, self._stop_at, self._polls = iterations, stop_at, 0

    def note(self, name: str) -> None:
        self.calls.append(name)
        self.clock.advance(self.COST_NS[name])

    def wait_ready(self) -> None:
        self.note("wait_ready")

    def is_exhausted(self) -> bool:
        return self._left == 0

    def wait_batch(self) -> None:
        self.note("wait_batch")

    def sample(self) -> Any:
        self.note("sample")
        self._left -= 1

    def to_device(self, rows: Any) -> Any:
        self.note("to_device")

    def update(self, batches: Any) -> None:
        self.note("update")

    def wait(self) -> None:
        self.note("device_sync")

    def publish(self) -> None:
        self.note("publish")

    def release(self) -> None:
        self.note("release")

    def agree(self, *, is_stopping: bool) -> bool:
        self.note("agree")
        return is_stopping

    def measurements(self) -> Iterator[None]:
        while True:
            self.note("measure")
            yield

    def is_stopping(self) -> bool:
        self._polls += 1
        return self._stop_at is not None and self._polls > self._stop_at


class Duty:
    def __init__(self, tape: Tape, name: str) -> None:
        self._tape, self._name = tape, name
        self.has_result = self.is_now = True

    def is_due(self) -> bool:
        return self.is_now

    def run(self) -> None:
        self._tape.note(self._name)

    run_if_due = run

    def run_last(self, *, is_complete: bool) -> bool:
        self._tape.calls.append(f"last {self._name} {is_complete}")
        self._tape.clock.advance(7 * self._tape.COST_NS[self._name])
        return is_complete and self.has_result


def run(
    tape: Tape, *, has_result: bool = True, is_due: bool = True, skipped: tuple[LearnerPhase, ...] = ()
) -> tuple[bool, Ledger]:
    ledger = Ledger(LearnerPhase, tape.clock)
    ledger.skip(skipped)
    duties = {name: Duty(tape, name) for name in ("eval", "save", "report")}
    duties["eval"].has_result = has_result
    for duty in duties.values():
        duty.is_now = is_due
    parts = Parts(
        source=tape, learner=tape, device_timer=DeviceTimer(tape), publisher=tape, world=tape,
        is_stopping=tape.is_stopping, ledger=ledger, measurements=tape.measurements(),
        evaluator=duties["eval"], checkpointer=duties["save"], reporter=duties["report"],
    )  # fmt: skip
    return train(parts), ledger


ITERATION = [
    "wait_ready", "agree", "wait_batch", "sample", "to_device", "update", "device_sync", "publish", "eval", "save",
    "release", "report", "measure",
]  # fmt: skip


def test_a_stop_request_ends_before_the_next_batch_is_taken() -> None:
    tape = Tape(iterations=5, stop_at=1)
    is_complete, _ = run(tape)
    end = ["wait_ready", "agree", "last eval False", "last save False", "last report False"]
    assert tape.calls == ["release", *ITERATION, *end]
    assert not is_complete


def test_a_run_without_its_last_result_is_not_complete() -> None:
    tape = Tape(iterations=1)
    is_complete, _ = run(tape, has_result=False)
    assert tape.calls[-3:] == ["last eval True", "last save False", "last report False"]
    assert not is_complete


def test_every_call_is_charged_to_its_own_phase_and_the_account_closes() -> None:
    tape = Tape(iterations=4)  # and the first one is warm-up
    _, ledger = run(tape)
    account = ledger.account()
    cost = Tape.COST_NS
    assert account.phases_ns == {
        "collector_wait": 4 * cost["wait_ready"], "rank_barrier": 4 * cost["agree"],
        "replay_batch_wait": 3 * cost["wait_batch"], "replay_sample": 3 * cost["sample"], "h2d": 3 * cost["to_device"],
        "train": 3 * (cost["update"] + cost["device_sync"]), "param_sync": 0, "weight_publish": 3 * cost["publish"],
        "collect": 0,
        "evaluation": 10 * cost["eval"], "checkpoint": 10 * cost["save"], "sync_coordination": 3 * cost["release"],
        "log": 10 * cost["report"] + 3 * cost["measure"], "other": 0,
    }  # fmt: skip
    assert sum(account.phases_ns.values()) == account.wall_ns
    assert account.warmup_ns == cost["release"] + sum(cost.values())
    assert account.iterations == 3
    assert account.cooldown is not None
    after = {phase: ns for phase, ns in account.cooldown.phases_ns.items() if ns}
    last = {"evaluation": 7 * cost["eval"], "checkpoint": 7 * cost["save"], "log": 7 * cost["report"]}
    assert after == {"collector_wait": cost["wait_ready"], "rank_barrier": cost["agree"], **last}


def test_a_run_that_ends_in_its_first_iteration_is_all_warm_up() -> None:
    tape = Tape(iterations=5, stop_at=0)
    _, ledger = run(tape)
    account = ledger.account()
    assert (account.wall_ns, account.iterations) == (0, 0)
    assert account.warmup_ns == tape.clock.now_ns()
