"""The collector loop with plain fakes: when weights are taken, what is counted, and what a report holds."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.collect.collector import (
    CollectorParts,
    CollectorReporter,
    Progress,
    collect,
    drop_bad_rows,
    step,
    wait_turn,
)
from offpolicy.collect.episodes import EPISODE_COLUMNS, EpisodeTracker
from offpolicy.collect.replay_writer import BadRowError
from offpolicy.errors import EnvFailure, NumericsError
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

    def answer_snapshot(self, take: Callable[[], OSError | None]) -> None:
        take()
        self.snapshots += 1


class Reports(list[CollectorTotals]):
    publish = list.append


def never_renewed(error: EnvFailure) -> None:
    raise error


def make(reports: Reports | None = None, gate: Gate | None = None, num_envs: int = 2, **parts: Any) -> CollectorParts:
    control = ControlPage(memoryview(bytearray(ControlPage.nbytes(1, 1))), 1, 1)
    episodes = Ring(memoryview(bytearray(Ring.nbytes(8, EPISODE_COLUMNS, 8))), EPISODE_COLUMNS, np.float64)
    reporter: Any = CollectorReporter(
        control,
        0,
        Reports() if reports is None else reports,
        episodes,
        EpisodeTracker(num_envs),
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
        "renew_env": never_renewed,
        "warn": lambda text: None,
        "seed": 1,
        "number": 0,
        "max_bad_rows": 10,
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
    control.collectors[0][CollectorWord.ENV_STEPS] = 150
    reporter.record(outcome(), 102)
    assert reporter.env_steps == 252


def test_weights_are_taken_when_the_writer_wants_them_and_never_in_the_warm_up() -> None:
    policy = Policy(warmup_steps=4)
    parts = make(policy=policy)
    for _ in range(6):
        step(parts)
    assert (policy.refreshed, parts.progress.policy_steps) == (2, 4)  # steps 3 and 5 of the six


NUMBERS, NONE, ALL = np.zeros(3, np.float32), np.zeros(3, np.bool_), np.ones(3, np.bool_)
OUTCOME = StepOutcome(np.ones((3, 2), np.float32), NUMBERS, NONE, ALL, ALL, NUMBERS, NUMBERS)
BAD = BadRowError(np.array([0, 2]), {"reward": np.array([np.nan, 0.0, np.inf]), "obs": np.ones((3, 2))})


class Beginning:
    """Environments whose episodes begin with `first`."""

    def __init__(self, first: float = 7.0, num_envs: int = 2, *, can_reset_some: bool = True) -> None:
        self.first, self.num_envs, self.can_reset_some, self.seeds = first, num_envs, can_reset_some, list[int]()

    def step(self, action: np.ndarray) -> StepOutcome:
        return outcome()

    def reset(self, seed: int) -> np.ndarray:
        self.seeds.append(seed)
        return np.full((self.num_envs, self.num_envs - 1), self.first, np.float32)

    def reset_some(self, seed: int, numbers: Any, where: np.ndarray) -> np.ndarray:
        return self.reset(seed)


class Abandoned(Writer):
    """Remembers which environments were abandoned."""

    def __init__(self) -> None:
        super().__init__()
        self.abandoned: list[int] = []

    def abandon(self, envs: Any) -> None:
        self.abandoned.extend(envs)


def with_bad_rows(env: Beginning, **parts: Any) -> tuple[CollectorParts, list[str]]:
    """A collector of three environments in the middle of their episodes, and its warnings."""
    warnings: list[str] = []
    made = make(env=env, writer=Abandoned(), warn=warnings.append, num_envs=3, **parts)
    made.progress.env_steps = 40
    made.reporter.tracker.ep_return[:], made.reporter.tracker.ep_length[:] = 1.0, [4, 5, 6]
    return made, warnings


@pytest.mark.parametrize(("can_reset_some", "expected"), [(True, [7, 1, 7]), (False, [7, 7, 7])])
def test_the_environments_of_bad_rows_begin_again_and_theirs_are_no_transitions(
    can_reset_some: bool, expected: list[int]
) -> None:
    """Where all can only be reset together, the episodes of all end with the row, and none is glued to another."""
    parts, _ = with_bad_rows(Beginning(num_envs=3, can_reset_some=can_reset_some))
    kept = drop_bad_rows(parts, BAD, OUTCOME)
    was_reset = [value == 7 for value in expected]
    tracker: Any = parts.reporter.tracker
    writer: Any = parts.writer
    assert kept.next_obs[:, 0].tolist() == expected
    assert kept.is_valid.tolist() == kept.truncated.tolist() == [not value for value in was_reset]
    assert (tracker.ep_length == 0).tolist() == (tracker.ep_return == 0).tolist() == was_reset
    assert writer.abandoned == np.flatnonzero(was_reset).tolist()


def test_each_bad_row_is_counted_and_each_reset_has_another_seed() -> None:
    env = Beginning(num_envs=3)
    parts, warnings = with_bad_rows(env)
    for vector_steps in range(3):
        parts.progress.vector_steps = vector_steps
        drop_bad_rows(parts, BAD, OUTCOME)
    assert len(set(env.seeds)) == 3
    assert [text.rpartition(", ")[2] for text in warnings] == [f"{n} of env.max_bad_rows=10" for n in (2, 4, 6)]


@pytest.mark.promise("nan-never-trained")
def test_one_bad_row_beyond_the_limit_names_environment_step_and_seed() -> None:
    parts, warnings = with_bad_rows(Beginning(num_envs=3), max_bad_rows=1)
    text = "^NaN or Inf in reward of environment 0 at env step 40, episode step 4, seed 1$"
    with pytest.raises(NumericsError, match=text):
        drop_bad_rows(parts, BAD, OUTCOME)
    assert warnings == []


def test_an_episode_that_begins_with_nan_is_an_error() -> None:
    parts, _ = with_bad_rows(Beginning(np.nan, num_envs=3))
    with pytest.raises(NumericsError, match="^NaN or Inf in the first observation of environment 0, seed 1$"):
        drop_bad_rows(parts, BAD, OUTCOME)


def test_the_sound_rows_of_a_step_with_bad_ones_count_as_env_steps() -> None:
    class OneIsBad(Abandoned):
        def write(self, obs: np.ndarray, output: PolicyOutput, outcome: StepOutcome) -> int:
            raise BadRowError(np.array([0]), {"reward": NAN}, num_stored=1)

    env = Beginning()
    parts = make(writer=OneIsBad(), env=env)
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
