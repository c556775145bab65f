"""The collector loop with plain fakes: when weights are taken, what is counted, and what a report holds."""

from __future__ import annotations

import errno
import operator
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.collect.collector import Collector
from offpolicy.collect.replay_writer import BadRowError
from offpolicy.config.schema import RunConfig
from offpolicy.errors import EnvFailure, NumericsError
from offpolicy.processes.control_page import CollectorWord, ControlPage, HostWord, RankWord, Stop
from offpolicy.processes.handshake import LearnerGate
from offpolicy.processes.shared_memory import WakeEvent
from offpolicy.replay.ring import Ring
from offpolicy.timing.ledger import Ledger, NullLedger
from offpolicy.timing.phases import CollectorPhase
from offpolicy.training.run_memory import EPISODE_COLUMNS
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
        self.counts = 0, 0
        self.abandoned: list[int] = []

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

    def rollout_counts(self) -> tuple[int, int]:
        return self.counts

    def abandon(self, envs: Any) -> None:
        self.abandoned.extend(envs)


class Reports(list[CollectorTotals]):
    publish = list.append


class Env:
    """Environments whose episodes begin with `first`."""

    def __init__(
        self, first: float = 7.0, num_envs: int = 2, *, can_reset_some: bool = True, error: EnvFailure | None = None
    ) -> None:
        self.first, self.num_envs, self.can_reset_some, self.seeds = first, num_envs, can_reset_some, list[int]()
        self._error = error  # in the first step

    def step(self, action: np.ndarray) -> StepOutcome:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return outcome()

    def reset(self, seed: int) -> np.ndarray:
        self.seeds.append(seed)
        return np.full((self.num_envs, max(self.num_envs - 1, 1)), self.first, np.float32)

    def reset_some(self, seed: int, numbers: Any, where: np.ndarray) -> np.ndarray:
        return self.reset(seed)

    def renew(self) -> None: ...


def make(*, index: int = 0, num_collectors: int = 1, config: Any = None, **parts: Any) -> Collector:
    control = ControlPage(memoryview(bytearray(ControlPage.nbytes(1, num_collectors))), 1, num_collectors)
    defaults: dict[str, Any] = {
        "cfg": RunConfig.from_mapping(config or {"env": {"max_bad_rows": 10}}), "index": index, "number": index,
        "num_hosts": 1, "env": Env(), "policy": Policy(), "writer": Writer(), "control": control,
        "wake_event": WakeEvent.create(), "to_wake": [WakeEvent.create()], "reports": Reports(),
        "episodes": Ring(memoryview(bytearray(Ring.nbytes(8, EPISODE_COLUMNS, 8))), EPISODE_COLUMNS, np.float64),
        "ledger": NullLedger(CollectorPhase), "send": lambda kind, text: None, "snapshot_dir": Path("none"),
        "take_snapshot": lambda collector: None,
    }  # fmt: skip
    collector = Collector(**{**defaults, **parts})
    collector.obs = np.zeros((2, 1), np.float32)
    return collector


def ended(reward: list[float], ends: list[bool], is_valid: list[bool], *, by: str = "terminated") -> StepOutcome:
    """A step of two environments in which some episodes end."""
    nothing = np.zeros(2, np.bool_)
    flags = {"terminated": nothing, "truncated": nothing, by: np.array(ends)}
    return StepOutcome(
        np.zeros((2, 1), np.float32), np.array(reward), **flags, is_valid=np.array(is_valid), success=NAN, measure=NAN
    )


def finished(collector: Collector) -> list[tuple[float, ...]]:
    """Environment, return, length and both flags of the episodes that were published."""
    return [tuple(row[1:6]) for row in collector.episodes.read_range(0, 8)[: collector.episodes.committed].tolist()]


@pytest.mark.promise("raw-return")
def test_an_episode_is_published_with_its_raw_return_its_length_and_its_end() -> None:
    collector = make()
    collector.record_episodes(ended([1.5, -1.0], [False, False], [True, True]))
    assert finished(collector) == []
    collector.record_episodes(ended([2.5, -1.0], [True, False], [True, True]))
    collector.record_episodes(ended([0.0, -1.0], [False, True], [False, True], by="truncated"))
    assert finished(collector) == [(0, 4.0, 2, 1, 0), (1, -3.0, 3, 0, 1)]


@pytest.mark.promise("reset-rows")
def test_the_reset_row_belongs_to_no_episode() -> None:
    collector = make()
    collector.record_episodes(ended([1.0, 0.0], [True, False], [True, True]))
    collector.record_episodes(ended([99.0, 0.0], [False, False], [False, True]))
    collector.record_episodes(ended([3.0, 0.0], [True, False], [True, True]))
    assert finished(collector)[1] == (0, 3.0, 1, 1, 0)


def test_episodes_are_dated_by_the_checkpoint_until_the_other_collectors_have_begun() -> None:
    """Of a resumed run whose other collector still starts; its episodes never go back in env steps."""
    collector = make(index=1, num_collectors=2, start_steps=140)
    collector.env_steps = 100
    assert collector.run_steps() == 240
    collector.control.collectors[0][CollectorWord.ENV_STEPS] = 150
    collector.env_steps = 102
    assert collector.run_steps() == 252


def test_weights_are_taken_when_the_writer_wants_them_and_never_in_the_warm_up() -> None:
    policy = Policy(warmup_steps=4)
    collector = make(policy=policy)
    for _ in range(6):
        collector.step()
    assert (policy.refreshed, collector.policy_steps) == (2, 4)  # steps 3 and 5 of the six


NUMBERS, NONE, ALL = np.zeros(3, np.float32), np.zeros(3, np.bool_), np.ones(3, np.bool_)
OUTCOME = StepOutcome(np.ones((3, 2), np.float32), NUMBERS, NONE, ALL, ALL, NUMBERS, NUMBERS)
BAD = BadRowError(np.array([0, 2]), {"reward": np.array([np.nan, 0.0, np.inf]), "obs": np.ones((3, 2))})


def with_bad_rows(env: Env, most: int = 10) -> tuple[Collector, list[str]]:
    """A collector of three environments in the middle of their episodes, and its warnings."""
    warnings: list[str] = []
    collector = make(
        env=env, send=lambda kind, text: warnings.append(text), config={"seed": 1, "env": {"max_bad_rows": most}}
    )
    collector.env_steps = 40
    collector.ep_return[:], collector.ep_length[:] = 1.0, [4, 5, 6]
    return collector, warnings


@pytest.mark.parametrize(("can_reset_some", "expected"), [(True, [7, 1, 7]), (False, [7, 7, 7])])
def test_the_environments_of_bad_rows_begin_again_and_theirs_are_no_transitions(
    can_reset_some: bool, expected: list[int]
) -> None:
    """Where all can only be reset together, the episodes of all end with the row, and none is glued to another."""
    collector, _ = with_bad_rows(Env(num_envs=3, can_reset_some=can_reset_some))
    kept = collector.drop_bad_rows(BAD, OUTCOME)
    was_reset = [value == 7 for value in expected]
    writer: Any = collector.writer
    assert kept.reset_obs is not None
    assert kept.reset_obs[:, 0].tolist() == expected
    assert kept.is_valid.tolist() == kept.truncated.tolist() == [not value for value in was_reset]
    assert (collector.ep_length == 0).tolist() == (collector.ep_return == 0).tolist() == was_reset
    assert writer.abandoned == np.flatnonzero(was_reset).tolist()


def test_each_bad_row_is_counted_and_each_reset_has_another_seed() -> None:
    env = Env(num_envs=3)
    collector, warnings = with_bad_rows(env)
    for vector_steps in range(3):
        collector.vector_steps = vector_steps
        collector.drop_bad_rows(BAD, OUTCOME)
    assert len(set(env.seeds)) == 3
    assert [text.rpartition(", ")[2] for text in warnings] == [f"{n} of env.max_bad_rows=10" for n in (2, 4, 6)]


@pytest.mark.promise("nan-never-trained")
def test_one_bad_row_beyond_the_limit_names_environment_step_and_seed() -> None:
    collector, warnings = with_bad_rows(Env(num_envs=3), most=1)
    text = "^NaN or Inf in reward of environment 0 at env step 40, episode step 4, seed 1$"
    with pytest.raises(NumericsError, match=text):
        collector.drop_bad_rows(BAD, OUTCOME)
    assert warnings == []


def test_an_episode_that_begins_with_nan_is_an_error() -> None:
    collector, _ = with_bad_rows(Env(np.nan, num_envs=3))
    with pytest.raises(NumericsError, match="^NaN or Inf in the first observation of environment 0, seed 1$"):
        collector.drop_bad_rows(BAD, OUTCOME)


def test_the_sound_rows_of_a_step_with_bad_ones_count_as_env_steps() -> None:
    class OneIsBad(Writer):
        def write(self, obs: np.ndarray, output: PolicyOutput, outcome: StepOutcome) -> int:
            raise BadRowError(np.array([0]), {"reward": NAN}, num_stored=1)

    collector = make(writer=OneIsBad())
    collector.step()
    assert (collector.env_steps, collector.vector_steps) == (1, 1)


def test_the_last_report_counts_everything() -> None:
    collector = make()
    writer, reports = collector.writer, collector.reports
    assert isinstance(writer, Writer)
    assert isinstance(reports, Reports)
    writer.counts = 5, 2
    collector.control.leader[RankWord.GRANTED] = 4
    threading.Timer(0.1, lambda: stop(collector, Stop.EXIT)).start()
    collector.run()
    (last,) = reports
    assert (last.env_steps, last.vector_steps, last.rollouts, last.rollouts_dropped) == (4, 2, 5, 2)


def stop(collector: Collector, level: Stop) -> None:
    collector.control.host[HostWord.STOP] = level
    collector.wake_event.set()


class Learner(SimpleNamespace):
    """A wake event of a collector: every wait takes 10 ns, and by its end the learner has taken the next action."""

    def wait(self, timeout_s: float) -> bool:
        self.clock.advance(10)
        self.actions.pop(0)()
        return True


def test_handshake_idleness_and_snapshots_are_phases_of_their_own() -> None:
    """A snapshot comes before the next step, and holds the collector until the checkpoint is on disk."""
    clock = FakeClock()
    ledger = Ledger(CollectorPhase, clock)
    ledger.end_warmup()
    learner = Learner(clock=clock, actions=[])
    collector = make(ledger=ledger, wake_event=learner, to_wake=[SimpleNamespace(set=lambda: clock.advance(3))])
    collector.take_snapshot = lambda collector: clock.advance(100)
    leader = collector.control.leader

    def put(word: RankWord, value: int) -> Callable[[], None]:
        return lambda: operator.setitem(leader, word, value)

    grant, request, release = (
        put(RankWord.GRANTED, 9),
        put(RankWord.SNAPSHOT_REQUEST, 1),
        put(RankWord.SNAPSHOT_RELEASE, 1),
    )
    spent = []
    for actions in ([], [request, grant, release]):
        learner.actions += actions
        if not actions:
            grant()
        assert collector.wait_turn()
        spent.append([ledger.account().phases_ns[name] for name in ("handshake", "learner_wait", "snapshot")])
        put(RankWord.GRANTED, 0)()
        collector.env_steps += 1
    assert spent == [[3, 0, 0], [6, 30, 103]]
    assert sum(ledger.account().phases_ns.values()) == 139


def test_the_collector_steps_up_to_its_grant_and_then_waits() -> None:
    collector = make()
    collector.env_steps, learner = 2, LearnerGate(collector.control, 0, WakeEvent.create(), [collector.wake_event])
    learner.grant(3)
    assert collector.wait_turn()
    collector.env_steps = 3
    timer = threading.Timer(0.05, lambda: learner.grant(4))
    timer.start()
    assert collector.wait_turn()
    timer.join()
    assert learner.env_steps == 3


def test_a_finishing_collector_still_serves_the_last_snapshot_and_exits_when_asked() -> None:
    """A snapshot that the disk has refused is answered, too."""
    collector = make()
    words, leader = collector.control.collectors[0], collector.control.leader
    leader[RankWord.GRANTED] = 100
    found = []
    for number, error in enumerate((OSError(errno.ENOSPC, "full"), OSError("unknown"), None), start=1):
        collector.take_snapshot = lambda _, error=error: error
        stop(collector, Stop.FINISH)
        leader[RankWord.SNAPSHOT_REQUEST] = number
        timer = threading.Timer(0.05, lambda: stop(collector, Stop.EXIT))
        timer.start()
        assert not collector.wait_turn()
        timer.join()
        found.append((words[CollectorWord.SNAPSHOT_DONE], words[CollectorWord.SNAPSHOT_ERRNO]))
    assert found == [(1, errno.ENOSPC), (2, errno.EIO), (3, 0)]


def test_a_step_in_which_the_environment_raises_counts_nothing_and_new_episodes_follow() -> None:
    failure = EnvFailure("env 0 failed in step")
    collector = make(env=Env(error=failure), config={"env": {"on_error": "restart"}})
    collector.step()
    assert (collector.env_steps, collector.vector_steps, collector.obs.tolist()) == (0, 0, [[7.0], [7.0]])
    assert collector.writer.abandoned == [0, 1]  # type: ignore[attr-defined]
    with pytest.raises(EnvFailure):
        make(env=Env(error=failure)).step()
