"""Work at an episode's end runs in one worker, and what goes wrong there costs nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest

from offpolicy.collect.episode_hook import STOPPED, EpisodeHook, HookConfig, HookResult, Interval
from offpolicy.collect.evaluation import EpisodeCallbacks, step_episodes
from offpolicy.collect.policy_evaluation import overlap
from offpolicy.collect.post import Episode
from offpolicy.timing.clock import MonotonicClock
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import EvaluatorPhase
from offpolicy.types import StepOutcome
from tests.processes.example_hooks import episode

pytestmark = [pytest.mark.mp, pytest.mark.slow]
MS = 1_000_000
HOOKS = "tests.processes.example_hooks"


class Answers(list[HookResult]):
    """The results of a hook, as they come."""

    @property
    def errors(self) -> dict[int, str | None]:
        return {done.episode_index: done.error.splitlines()[-1] if done.error else None for done in self}


MakeHook = Callable[..., tuple[EpisodeHook, Answers]]


@pytest.fixture
def make_hook() -> Iterator[MakeHook]:
    opened: list[EpisodeHook] = []

    def make(
        hook: str,
        *,
        queue: int = 2,
        timeout_s: float = 10.0,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> tuple[EpisodeHook, Answers]:
        answers = Answers()
        post = EpisodeHook(HookConfig(f"{HOOKS}:{hook}", queue, timeout_s), should_stop, answers.append)
        opened.append(post)
        post.open()
        return post, answers

    yield make
    for post in opened:
        post.close()


# -- the queue --------------------------------------------------------------------------------------------------------


def test_every_episode_is_answered_once_in_its_order(make_hook: MakeHook) -> None:
    post, answers = make_hook("fail_if_odd")
    for index in range(5):
        post.submit(episode(index))
    post.drain()
    told = {index: f"ValueError: episode {index} is odd" if index % 2 else None for index in range(5)}
    assert answers.errors == told
    assert [done.episode_index for done in answers] == list(range(5))
    assert all(done.interval is not None for done in answers)


def test_a_worker_that_dies_costs_what_it_had_and_the_next_one_goes_on(make_hook: MakeHook) -> None:
    post, answers = make_hook("die_at_1")
    for index in range(2):
        post.submit(episode(index))
    post.drain()
    post.submit(episode(2))
    post.drain()
    assert answers.errors == {0: None, 1: "the worker of the hook was killed by SIGKILL", 2: None}


def test_a_silent_hook_is_given_up(make_hook: MakeHook) -> None:
    post, answers = make_hook("hang", timeout_s=0.2)
    post.submit(episode())
    post.drain()
    assert answers.errors == {0: "the worker of the hook gave no answer for 0.2 s (env.step_timeout_s)"}


def test_told_to_stop_nothing_waits_for_the_hook_and_no_episode_is_lost(make_hook: MakeHook) -> None:
    asked = list[str]()
    post, answers = make_hook("hang", queue=1, should_stop=lambda: len(asked) > 0)
    for index in range(2):
        post.submit(episode(index))
    asked.append("to stop")
    post.drain()  # the hook hangs for ever
    post.close()
    assert sorted(answers.errors) == [0, 1]
    assert set(answers.errors.values()) == {STOPPED}
    assert len(answers) == len(answers.errors)


# -- both at once -----------------------------------------------------------------------------------------------------


class Sleeping:
    """Eight environments that sleep together: the episode of number i lasts i + 1 steps of 100 ms."""

    num_envs = 8

    def __init__(self) -> None:
        self.t = 0

    def reset(self, seed: int) -> np.ndarray:
        return np.zeros((8, 1), np.float32)

    def reset_some(self, seed: int, numbers: list[int], where: np.ndarray) -> np.ndarray:
        raise AssertionError("one episode each")

    def step(self, action: np.ndarray) -> StepOutcome:
        time.sleep(0.1)
        self.t += 1
        ends, no, valid = np.arange(1, 9) == self.t, np.zeros(8, np.bool_), np.ones(8, np.bool_)
        nan = np.full(8, np.nan, np.float32)
        return StepOutcome(np.zeros((8, 1), np.float32), np.ones(8), ends, no, valid, nan, nan)


def stay(obs: np.ndarray) -> np.ndarray:
    return np.zeros((8, 1), np.float32)


class Timed:
    """An evaluation of eight episodes with a hook: its intervals, and its account."""

    def __init__(self, hook: str) -> None:
        self.rollouts, self.pauses = list[Interval](), list[Interval]()
        answers = Answers()
        ledger = Ledger(EvaluatorPhase, MonotonicClock())
        with closing(EpisodeHook(HookConfig(f"{HOOKS}:{hook}", 2, 10.0), lambda: False, answers.append)) as post:

            def on_end(ended: Episode, interval: Interval) -> None:
                self.rollouts.append(interval)
                post.submit(ended)

            post.open()
            ledger.end_warmup()
            callbacks = EpisodeCallbacks(on_end=on_end, on_pause=self.pauses.append, ledger=ledger)
            step_episodes(stay, Sleeping(), 8, 0, callbacks)
            self.phases_ns = ledger.account().phases_ns
            post.drain()
        self.posts = [done.interval for done in answers if done.interval is not None]


@pytest.mark.alone
def test_the_work_at_an_episodes_end_runs_while_the_others_go_on() -> None:
    timed = Timed("take_100_ms")
    assert timed.posts[0].start_ns < timed.rollouts[-1].end_ns
    assert overlap(timed.rollouts, timed.posts, timed.pauses) == pytest.approx(7 / 8, rel=0.05)  # all but the last


@pytest.mark.alone
def test_a_slow_hook_shows_as_backpressure_and_not_as_time_of_the_environment() -> None:
    """Episodes end every 100 ms, the hook takes 200 ms longer than that, and three may be on their way."""
    fast, slow = Timed("take_100_ms").phases_ns, Timed("take_300_ms").phases_ns
    assert fast["post_backpressure"] < 50 * MS
    # Number 3 waits for number 0, which took from 100 to 400 ms: 0 ms; 4 for 1: 200 ms; each one after it: 200 ms.
    assert slow["post_backpressure"] == pytest.approx(800 * MS, abs=80 * MS)
    assert slow["env_step"] == pytest.approx(fast["env_step"], rel=0.1)
