"""The collector loop with plain fakes: when weights are taken, what is counted, and what a report holds."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.collect.collector import CollectorParts, CollectorReporter, Progress, collect, step, wait_turn
from offpolicy.collect.episodes import EPISODE_COLUMNS, EpisodeTracker
from offpolicy.collect.replay_writer import BadRowError
from offpolicy.errors import EnvFailure
from offpolicy.processes.control_page import CollectorWord, ControlPage
from offpolicy.processes.handshake import Turn
from offpolicy.replay.ring import Ring
from offpolicy.timing.ledger import Ledger, NullLedger
from offpolicy.timing.phases import CollectorPhase
from offpolicy.types import CollectorTotals, PolicyOutput, StepOutcome
from tests.fakes import FakeClock

NAN, NO, YES = np.full(2, np.nan, np.float32), np.zeros(2, np.bool_), np.ones(2, np.bool_)


def outcome(ends: np.ndarray = NO, value: float = 1.0) -> StepOutcome:
    return StepOutcome(np.full((2, 1), value, np.float32), np.ones(2), ends, NO, YES, NAN, NAN)


class Policy:
    version = 1

    def __init__(self, warmup_steps: int = 0) -> None:
        self.refreshed, self._warmup_steps = 0, warmup_steps

    def is_random(self, env_steps: int) -> bool:
        return env_steps < self._warmup_steps

    def refresh(self) -> bool:
        self.refreshed += 1
        return True

    def act(self, obs: np.ndarray, env_steps: int) -> PolicyOutput:
        return PolicyOutput(obs, None, self.version)


class Writer:
    """Wants new weights every second step."""

    def __init__(self) -> None:
        self.num_steps = 0

    def wants_fresh_policy(self, version: int) -> bool:
        return self.num_steps % 2 == 0

    def handed_over(self, env_steps: int) -> int:
        return env_steps

    def may_step(self, env_steps: int, granted: int) -> bool:
        return env_steps < granted

    def begin(self) -> None: ...

    def write(self, obs: np.ndarray, output: PolicyOutput, outcome: StepOutcome) -> int:
        self.num_steps += 1
        return int(outcome.is_valid.sum())


class Gate:
    def __init__(self, *turns: Turn | None) -> None:
        self.turns, self.snapshots = list(turns), 0

    def announce(self, env_steps: int, handed_over: int) -> None: ...

    def turn(self, may_go: Any) -> Turn | None:
        return self.turns.pop(0)

    wait_turn = turn

    def saving(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def snapshot_taken(self, error: OSError | None) -> None:
        self.snapshots += 1


class Reports(list[CollectorTotals]):
    publish = list.append


def never_bad(error: BadRowError, outcome: StepOutcome, progress: Progress) -> StepOutcome:
    raise error


def never_renewed(error: EnvFailure) -> None:
    raise error


def make(reports: Reports | None = None, gate: Gate | None = None, **parts: Any) -> CollectorParts:
    control = ControlPage(memoryview(bytearray(ControlPage.nbytes(1, 1))), 1, 1)
    episodes = Ring(memoryview(bytearray(Ring.nbytes(8, EPISODE_COLUMNS, 8))), EPISODE_COLUMNS, np.float64)
    reporter: Any = CollectorReporter(
        control,
        0,
        Reports() if reports is None else reports,
        episodes,
        EpisodeTracker(2),
        start_steps=[0] * len(control.collectors),
    )  # type: ignore[arg-type]
    defaults: dict[str, Any] = {
        "env": SimpleNamespace(step=lambda action: outcome()),
        "policy": Policy(),
        "writer": Writer(),
        "gate": gate or Gate(),
        "reporter": reporter,
        "progress": Progress(obs=np.zeros((2, 1), np.float32)),
        "ledger": NullLedger(CollectorPhase),
        "take_snapshot": lambda: None,
        "drop_bad_rows": never_bad,
        "renew_env": never_renewed,
    }
    return CollectorParts(**{**defaults, **parts})


def test_episodes_are_dated_by_the_checkpoint_until_the_other_collectors_have_begun() -> None:
    """Of a resumed run whose other collector still starts; its episodes never go back in env steps."""
    control = ControlPage(memoryview(bytearray(ControlPage.nbytes(1, 2))), 1, 2)
    episodes = Ring(memoryview(bytearray(Ring.nbytes(8, EPISODE_COLUMNS, 8))), EPISODE_COLUMNS, np.float64)
    reporter: Any = CollectorReporter(  # type: ignore[arg-type]
        control, 1, Reports(), episodes, EpisodeTracker(2), start_steps=[140, 84]
    )
    reporter.record(outcome(), 100)
    assert reporter.env_steps == 240
    control.collectors[0].set(CollectorWord.ENV_STEPS, 150)
    reporter.record(outcome(), 102)
    assert reporter.env_steps == 252


def test_weights_are_taken_when_the_writer_wants_them_and_never_in_the_warm_up() -> None:
    policy = Policy(warmup_steps=4)
    parts = make(policy=policy)
    for _ in range(6):
        step(parts)
    assert (policy.refreshed, parts.progress.policy_steps) == (2, 4)  # steps 3 and 5 of the six


def test_the_sound_rows_of_a_step_with_bad_ones_count_as_env_steps() -> None:
    class OneIsBad(Writer):
        def write(self, obs: np.ndarray, output: PolicyOutput, outcome: StepOutcome) -> int:
            raise BadRowError(np.array([0]), {"reward": NAN}, num_stored=1)

    parts = make(writer=OneIsBad(), drop_bad_rows=lambda error, outcome, progress: outcome)
    step(parts)
    assert (parts.progress.env_steps, parts.progress.vector_steps) == (1, 1)


@pytest.mark.parametrize(("rollouts", "expected"), [(None, (0, 0)), (SimpleNamespace(rollouts=5, dropped=2), (5, 2))])
def test_the_last_report_counts_everything(rollouts: Any, expected: tuple[int, int]) -> None:
    reports = Reports()
    collect(make(reports, Gate(Turn.STEP, Turn.STEP, Turn.STOP), rollouts=rollouts))
    (last,) = reports
    assert (last.env_steps, last.vector_steps) == (4, 2)
    assert (last.rollouts, last.rollouts_dropped) == expected


class SlowGate(Gate):
    """Takes 3 ns to announce, 10 to wait."""

    def __init__(self, clock: FakeClock, *turns: Turn | None) -> None:
        super().__init__(*turns)
        self._clock = clock

    def announce(self, env_steps: int, handed_over: int) -> None:
        self._clock.advance(3)

    def wait_turn(self, may_go: Any) -> Turn | None:
        self._clock.advance(10)
        return self.turn(may_go)


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ((Turn.STEP,), (3, 0, 0)),  # nothing to wait for
        ((None, Turn.STEP), (3, 10, 0)),
        ((None, Turn.SNAPSHOT, Turn.STEP), (3, 10, 100)),
        ((None, Turn.SNAPSHOT, None, Turn.STEP), (3, 20, 100)),  # held until the checkpoint is on disk
    ],
)
def test_handshake_idleness_and_snapshots_are_phases_of_their_own(
    turns: tuple[Turn | None, ...], expected: tuple[int, int, int]
) -> None:
    clock = FakeClock()
    ledger = Ledger(CollectorPhase, clock)
    ledger.end_warmup()
    assert wait_turn(make(gate=SlowGate(clock, *turns), ledger=ledger, take_snapshot=lambda: clock.advance(100)))
    phases_ns = ledger.account().phases_ns
    assert tuple(phases_ns[name] for name in ("handshake", "learner_wait", "snapshot")) == expected
    assert sum(phases_ns.values()) == sum(expected)


def test_a_step_in_which_the_environment_raises_counts_nothing_and_new_episodes_follow() -> None:
    def fail(action: np.ndarray) -> StepOutcome:
        raise EnvFailure("env 0 failed in step")

    def renew(error: EnvFailure) -> None:
        parts.progress.obs = np.ones((2, 1), np.float32)

    parts = make(env=SimpleNamespace(step=fail), renew_env=renew)
    step(parts)
    progress = parts.progress
    assert (progress.env_steps, progress.vector_steps, progress.obs.tolist()) == (0, 0, [[1.0], [1.0]])
    with pytest.raises(EnvFailure):
        step(make(env=SimpleNamespace(step=fail)))
