"""Work at an episode's end runs in one worker, and what goes wrong there costs nothing else."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from offpolicy.collect import episode_hook
from offpolicy.collect.episode_hook import STOPPED, EpisodeHook, HookConfig, HookResult, Interval
from offpolicy.collect.evaluation import EpisodeCallbacks, step_episodes
from offpolicy.collect.policy_evaluation import EPISODES_FILE, EvaluationContext, PolicyEvaluation, overlap
from offpolicy.collect.post import Episode
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.timing.clock import MonotonicClock
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import EvaluatorPhase
from offpolicy.types import SpaceSpec, StepOutcome
from tests.processes.example_hooks import episode

pytestmark = pytest.mark.mp
MS = 1_000_000
HOOKS = "tests.processes.example_hooks"


class Answers(list[HookResult]):
    """The results of a hook, as they come."""

    @property
    def errors(self) -> dict[int, str | None]:
        return {done.episode_index: done.error.splitlines()[-1] if done.error else None for done in self}


MakeHook = Callable[..., tuple[EpisodeHook, Answers]]


def children() -> set[int]:
    """The pids of this thread's child processes."""
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


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


def test_a_large_episode_does_not_block_in_the_pipe(make_hook: MakeHook) -> None:
    post, answers = make_hook("take_100_ms")
    for index in range(3):
        post.submit(episode(index, length=100_000))
    post.drain()
    assert [done.error for done in answers] == [None] * 3


def test_a_worker_that_dies_costs_what_it_had_and_the_next_one_goes_on(make_hook: MakeHook) -> None:
    post, answers = make_hook("die_at_1")
    for index in range(2):
        post.submit(episode(index))
    post.drain()
    post.submit(episode(2))
    post.drain()
    assert answers.errors == {0: None, 1: "the worker of the hook was killed by SIGKILL", 2: None}


def test_a_worker_that_dies_takes_the_episodes_that_wait_with_it(make_hook: MakeHook) -> None:
    post, answers = make_hook("die_after_100_ms")
    for index in range(3):
        post.submit(episode(index, length=10_000))
    post.drain()
    assert answers.errors == dict.fromkeys(range(3), "the worker of the hook was killed by SIGKILL")


def test_an_exit_in_the_hook_is_a_failure_like_another(make_hook: MakeHook) -> None:
    post, answers = make_hook("exit_with_3")
    post.submit(episode())
    post.drain()
    assert answers.errors == {0: "SystemExit: 3"}


def test_what_a_hook_prints_to_a_full_disk_is_no_failure(make_hook: MakeHook) -> None:
    post, answers = make_hook("print_to_a_full_disk")
    post.submit(episode())
    post.drain()
    assert answers.errors == {0: None}


def test_a_silent_hook_is_given_up(make_hook: MakeHook) -> None:
    post, answers = make_hook("hang", timeout_s=0.2)
    post.submit(episode())
    post.drain()
    assert answers.errors == {0: "the worker of the hook gave no answer for 0.2 s (env.step_timeout_s)"}


def test_a_death_is_seen_though_a_child_of_the_hook_holds_the_pipe(make_hook: MakeHook) -> None:
    post, answers = make_hook("die_with_a_child", timeout_s=3.0)
    post.submit(episode())
    post.drain()
    assert answers.errors == {0: "the worker of the hook exited with code 7"}


def test_a_worker_that_died_idle_is_replaced_and_costs_nothing(make_hook: MakeHook) -> None:
    before = children()
    post, answers = make_hook("take_100_ms")
    post.submit(episode(0))
    post.drain()
    (pid,) = children() - before
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it is dead, and not reaped
    post.submit(episode(1))
    post.drain()
    assert answers.errors == {0: None, 1: None}


def test_a_worker_that_cannot_start_again_costs_its_episodes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module, answers = tmp_path / "gone_hooks.py", Answers()
    module.write_text("import os\n\n\ndef die(given):\n    os._exit(7)\n")
    with closing(EpisodeHook(HookConfig("gone_hooks:die", 2, 10.0), lambda: False, answers.append)) as post:
        post.open()
        module.unlink()
        for index in range(3):
            post.submit(episode(index))
            post.drain()
    gone = "eval.hook: got 'gone_hooks:die', allowed module:function: ModuleNotFoundError: No module named 'gone_hooks'"
    assert answers.errors == {0: "the worker of the hook exited with code 7", 1: gone, 2: gone}


def test_a_worker_that_dies_while_the_run_begins_costs_its_episodes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    mark, answers = tmp_path / "out-of-memory", Answers()
    mark.touch()
    (tmp_path / "unlucky_hooks.py").write_text(
        "import os\n\nif os.path.exists('out-of-memory'):\n    os._exit(9)\n\n\ndef fine(given):\n    pass\n"
    )
    with closing(EpisodeHook(HookConfig("unlucky_hooks:fine", 2, 10.0), lambda: False, answers.append)) as post:
        post.open()
        (logged,) = caplog.records
        post.submit(episode(0))
        mark.unlink()
        post.submit(episode(1))
        post.drain()
    died = "eval.hook: 'unlucky_hooks:fine' could not be loaded: its worker died; see train.log"
    assert logged.getMessage() == f"{died}; it is started again for the first episode"
    assert answers.errors == {0: died, 1: None}


def test_a_module_that_does_not_load_in_time_refuses_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each episode would wait as long again: a run that goes on would stand still and lose all of its hooks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(episode_hook, "START_TIMEOUT_S", 0.5)
    (tmp_path / "endless_hooks.py").write_text(
        "import threading\n\nthreading.Event().wait()\n\n\ndef fine(given):\n    pass\n"
    )
    before = children()
    with closing(EpisodeHook(HookConfig("endless_hooks:fine", 2, 10.0), lambda: False, Answers().append)) as post:
        with pytest.raises(ConfigError, match=r"^eval\.hook: 'endless_hooks:fine' .* took longer than 0\.5 s"):
            post.open()
        assert children() == before


def test_a_worker_that_the_system_refuses_costs_its_episodes_only(
    make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    post, answers = make_hook("die_at_1")
    post.submit(episode(1))
    post.drain()
    monkeypatch.setattr(sys, "executable", "/no/such/interpreter")
    post.submit(episode(2))
    refused = "eval.hook: its worker could not be started: [Errno 2] No such file or directory: '/no/such/interpreter'"
    assert answers.errors == {1: "the worker of the hook was killed by SIGKILL", 2: refused}


@pytest.mark.parametrize("call", ["drain", "submit", "close"])
def test_told_to_stop_nothing_waits_for_the_hook_and_no_episode_is_lost(make_hook: MakeHook, call: str) -> None:
    asked = list[str]()
    post, answers = make_hook("hang", queue=1, should_stop=lambda: len(asked) > 0)
    for index in range(2):
        post.submit(episode(index))
    asked.append("to stop")
    started = time.monotonic()
    post.submit(episode(2)) if call == "submit" else {"drain": post.drain, "close": post.close}[call]()
    post.close()
    assert time.monotonic() - started < 2.0
    assert sorted(answers.errors) == list(range(3 if call == "submit" else 2))
    assert set(answers.errors.values()) == {STOPPED}
    assert len(answers) == len(answers.errors)


def test_what_was_done_when_it_was_told_to_stop_counts_as_done(make_hook: MakeHook) -> None:
    asked = list[str]()
    post, answers = make_hook("take_100_ms", should_stop=lambda: len(asked) > 0)
    post.submit(episode(0))
    time.sleep(1.0)  # ten times what it takes; nobody listens
    asked.append("to stop")
    post.drain()
    assert answers.errors == {0: None}


@pytest.mark.parametrize(
    ("hook", "cause"),
    [
        ("no_such_module:hook", "ModuleNotFoundError"),
        (f"{HOOKS}:no_such_function", "AttributeError"),
        (f"{HOOKS}:not_a_function", "TypeError: not_a_function is int, which cannot be called"),
        ("nothing", "ModuleNotFoundError"),
    ],
)
def test_a_hook_that_does_not_exist_is_refused(hook: str, cause: str) -> None:
    post = EpisodeHook(HookConfig(hook, 2, 10.0), lambda: False, lambda done: None)
    with (
        closing(post),
        pytest.raises(ConfigError, match=rf"eval\.hook: got '{hook}', allowed module:function: {cause}"),
    ):
        post.open()


# -- both at once -----------------------------------------------------------------------------------------------------


class Sleeping:
    """Eight environments that sleep together: the episode of number i lasts `lengths[i]` steps of `step_s`."""

    num_envs = 8

    def __init__(self, lengths: Sequence[int], step_s: float = 0.1) -> None:
        self.t, self._lengths, self._step_s = 0, np.array(lengths), step_s

    def reset(self, seed: int) -> np.ndarray:
        return np.zeros((8, 1), np.float32)

    def reset_some(self, seed: int, numbers: list[int], where: np.ndarray) -> np.ndarray:
        raise AssertionError("one episode each")

    def step(self, action: np.ndarray) -> StepOutcome:
        time.sleep(self._step_s)
        self.t += 1
        ends, no, valid = self._lengths == self.t, np.zeros(8, np.bool_), np.ones(8, np.bool_)
        nan = np.full(8, np.nan, np.float32)
        return StepOutcome(np.zeros((8, 1), np.float32), np.ones(8), ends, no, valid, nan, nan)


def stay(obs: np.ndarray) -> np.ndarray:
    return np.zeros((8, 1), np.float32)


class Timed:
    """An evaluation of eight episodes with a hook: its intervals, and its account."""

    def __init__(self, hook: str, *, in_turn: bool, lengths: Sequence[int]) -> None:
        self.rollouts, self.pauses = list[Interval](), list[Interval]()
        answers, late = Answers(), list[Episode]()
        ledger = Ledger(EvaluatorPhase, MonotonicClock())
        with closing(EpisodeHook(HookConfig(f"{HOOKS}:{hook}", 2, 10.0), lambda: False, answers.append)) as post:

            def on_end(ended: Episode, interval: Interval) -> None:
                self.rollouts.append(interval)
                late.append(ended) if in_turn else post.submit(ended)

            post.open()
            ledger.end_warmup()
            callbacks = EpisodeCallbacks(on_end=on_end, on_pause=self.pauses.append, ledger=ledger)
            step_episodes(stay, Sleeping(lengths), 8, 0, callbacks)
            self.phases_ns = ledger.account().phases_ns
            for each in late:
                post.submit(each)
            post.drain()
        self.posts = [done.interval for done in answers if done.interval is not None]
        everything = (*self.rollouts, *self.posts)
        self.makespan_ns = max(each.end_ns for each in everything) - min(each.start_ns for each in everything)

    @property
    def overlap(self) -> float | None:
        return overlap(self.rollouts, self.posts, self.pauses)

    @property
    def is_overlapped(self) -> bool:
        """The first hook begins before the last episode ends, and nearly nothing is waited for."""
        begins_early = self.posts[0].start_ns < self.rollouts[-1].end_ns
        return begins_early and self.makespan_ns <= 1.15 * 900 * MS


@pytest.fixture(scope="module")
def timed_of() -> Callable[..., Timed]:
    """`timed_of(hook, in_turn=...)`: done when it is first asked for."""

    @functools.cache
    def timed(hook: str, *, in_turn: bool = False, lengths: Sequence[int] = range(1, 9)) -> Timed:
        return Timed(hook, in_turn=in_turn, lengths=lengths)

    return timed


@pytest.mark.alone
def test_the_work_at_an_episodes_end_runs_while_the_others_go_on(timed_of: Callable[..., Timed]) -> None:
    timed = timed_of("take_100_ms")
    assert timed.is_overlapped
    assert timed.overlap == pytest.approx(7 / 8, rel=0.05)  # all but the last one's


@pytest.mark.alone
def test_in_two_phases_it_does_not(timed_of: Callable[..., Timed]) -> None:
    """The control of the test above: first all episodes, then all of the work."""
    timed = timed_of("take_100_ms", in_turn=True)
    assert not timed.is_overlapped
    assert timed.makespan_ns == pytest.approx(1600 * MS, rel=0.05)
    assert timed.overlap == pytest.approx(0.0, abs=0.05)


@pytest.mark.alone
def test_a_slow_hook_shows_as_backpressure_and_not_as_time_of_the_environment(timed_of: Callable[..., Timed]) -> None:
    """Episodes end every 100 ms, the hook takes 200 ms longer than that, and three may be on their way."""
    fast, slow = timed_of("take_100_ms").phases_ns, timed_of("take_300_ms").phases_ns
    assert fast["post_backpressure"] < 50 * MS
    # Number 3 waits for number 0, which took from 100 to 400 ms: 0 ms; 4 for 1: 200 ms; each one after it: 200 ms.
    assert slow["post_backpressure"] == pytest.approx(800 * MS, abs=80 * MS)
    assert slow["env_step"] == pytest.approx(fast["env_step"], rel=0.1)


@pytest.mark.alone
def test_waiting_for_a_slow_hook_is_not_playing(timed_of: Callable[..., Timed]) -> None:
    """Of the eight steps, all but the first are taken while the hook works; the waits between them are not."""
    assert timed_of("take_300_ms").overlap == pytest.approx(7 / 8, rel=0.05)


@pytest.mark.alone
def test_episodes_that_end_in_one_step_are_not_overlapped_by_their_own_hooks(timed_of: Callable[..., Timed]) -> None:
    timed = timed_of("take_100_ms", lengths=(3,) * 8)
    assert len({each.end_ns for each in timed.rollouts}) == 1
    assert timed.makespan_ns == pytest.approx(1100 * MS, rel=0.05)  # 300 ms, and then eight times 100 ms
    assert timed.overlap == pytest.approx(0.0, abs=0.05)


@pytest.mark.alone
def test_an_evaluation_whose_episodes_end_in_one_step_says_that_nothing_was_hidden(tmp_path: Path) -> None:
    spec = SpaceSpec(4, 2, (-1.0,) * 2, (1.0,) * 2)
    tree = {"env": {"id": "offpolicy.envs.toy:PointMass-v0"}, "eval": {"episodes": 8, "hook": f"{HOOKS}:take_100_ms"}}
    context = EvaluationContext(lambda: False, pytest.fail)
    with closing(PolicyEvaluation(RunConfig.from_mapping(tree), spec, tmp_path, 0, context)) as evaluation:
        evaluation.open()
        result = evaluation.evaluate(np.zeros(evaluation.policy_size, np.float32), 100, 1)
    assert result is not None
    assert result.overlap == pytest.approx(0.0, abs=0.05)
    lines = [json.loads(line) for line in (tmp_path / EPISODES_FILE).read_text().splitlines()]
    assert len(lines) == 8
    assert len({line["ended_s"] for line in lines}) == 1
