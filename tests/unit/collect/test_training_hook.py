"""Training episodes are handed over whole, and the hook's work is hidden where the collector did not wait for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offpolicy.collect import training_hook
from offpolicy.collect.episode_hook import STOPPED, HookConfig, HookResult, Interval
from offpolicy.collect.post import Episode
from offpolicy.collect.training_hook import EpisodeSteps, HiddenWork, TrainingHook
from offpolicy.types import HookTotals, PolicyOutput, StepOutcome

YES = np.ones(2, np.bool_)
CONFIG = HookConfig("hooks:any", 2, 10.0, "collect.hook")


def step(
    t: int, *, ends: tuple[int, ...] = (), resets: tuple[int, ...] = ()
) -> tuple[np.ndarray, PolicyOutput, StepOutcome]:
    """Step t of two environments: observation t and 100 + t, action -t, reward t, of those that are no resets."""
    obs = np.array([[t], [100 + t]], np.float32)
    is_in = [np.isin([0, 1], which) for which in (ends, resets)]
    nan = np.full(2, np.nan, np.float32)
    outcome = StepOutcome(obs + 1, np.full(2, float(t)), is_in[0], np.zeros(2, np.bool_), ~is_in[1], nan, nan + 1)
    return obs, PolicyOutput(np.full((2, 1), -float(t), np.float32), None, 7), outcome


def cut(steps: EpisodeSteps, *each: tuple[np.ndarray, PolicyOutput, StepOutcome]) -> list[tuple[int, Episode]]:
    """Adds vector steps; returns environment and episode of each end."""
    found = []
    for obs, output, outcome in each:
        for env in steps.add(obs, output.action, outcome):
            found.append((env, steps.episode(env, outcome, len(found), 50, output.version)))
    return found


def test_an_episode_holds_its_own_steps_and_the_final_observation() -> None:
    steps = EpisodeSteps(YES, 10)
    found = cut(steps, step(0), step(1, ends=(0,)), step(2, resets=(0,)), step(3), step(4, ends=(0, 1)))
    assert [env for env, _ in found] == [0, 0, 1]
    first, second, other = (episode for _, episode in found)
    assert (first.obs.ravel().tolist(), first.action.ravel().tolist()) == ([0, 1, 2], [0, -1])
    assert (second.obs.ravel().tolist(), second.reward.tolist()) == ([3, 4, 5], [3, 4]), "no row of the reset"
    assert other.obs.ravel().tolist() == [100, 101, 102, 103, 104, 105]
    assert (other.ep_return, other.length, other.terminated, other.truncated) == (10.0, 5, True, False)
    assert (other.index, other.env_steps, other.policy_version) == (2, 50, 7)


def test_steps_that_no_running_episode_needs_are_dropped() -> None:
    steps = EpisodeSteps(YES, 10)
    cut(steps, step(0), step(1, ends=(0,)), step(2, resets=(0,)), step(3, ends=(1,)), step(4, resets=(1,)))
    assert len(steps._steps) == 2, "3 and 4, of the episode of environment 0"


def test_arrays_that_are_written_again_do_not_change_an_episode() -> None:
    steps, (obs, output, outcome) = EpisodeSteps(YES, 10), step(0)
    steps.add(obs, output.action, outcome)
    obs[:], output.action[:], outcome.reward[:] = 9, 9, 9
    ((_, episode), _) = cut(steps, step(1, ends=(0, 1)))
    assert (episode.obs[0, 0], episode.action[0, 0], episode.reward[0]) == (0, 0, 0)


def test_an_episode_that_began_before_this_process_is_not_handed_over() -> None:
    steps = EpisodeSteps(np.array([False, True]), 10)
    ends = step(1, ends=(0, 1))
    assert [env for env, _ in cut(steps, step(0), ends, step(2, resets=(0, 1)), step(3, ends=(0, 1)))] == [1, 0, 1]


def test_steps_of_an_episode_that_cannot_be_handed_over_are_not_kept() -> None:
    """All vector steps since the resume were, until that episode ended: perhaps never."""
    steps = EpisodeSteps(np.array([False, True]), 10)
    cut(steps, step(0), step(1, ends=(1,)), step(2, resets=(1,)), step(3))
    assert len(steps._steps) == 1, "3, of the episode of environment 1"
    nothing = EpisodeSteps(~YES, 10)
    assert cut(nothing, step(0), step(1, ends=(0,))) == []
    assert len(nothing._steps) == 0


def test_an_episode_that_does_not_end_is_kept_no_longer_than_the_longest() -> None:
    steps = EpisodeSteps(YES, 3)
    assert [env for env, _ in cut(steps, step(0), step(1), step(2, ends=(0,)))] == [0]
    cut(steps, step(3, resets=(0,)), step(4))
    assert (len(steps._steps), steps.num_too_long) == (1, 1), "4, of the second episode of environment 0"
    found = cut(steps, step(5, ends=(0, 1)), step(6, resets=(0, 1)), step(7, ends=(1,)))
    assert [(env, episode.obs.ravel().tolist()) for env, episode in found] == [(0, [4, 5, 6]), (1, [107, 108])]
    assert steps.num_too_long == 1


# -- what is hidden ---------------------------------------------------------------------------------------------------


def test_work_is_hidden_but_for_the_waits() -> None:
    work = HiddenWork()
    for begin, end in ((5, 6), (10, 20), (25, 30)):
        work.begin_wait(begin)
        work.end_wait(end)
    work.add_run(Interval(6, 16))  # 6 of it during the second wait
    work.add_run(Interval(16, 40))  # 4 and 5
    assert (work.busy_ns, work.hidden_ns) == (34, 34 - 6 - 4 - 5)


def test_a_run_that_ends_in_a_wait_that_goes_on_counts_its_part() -> None:
    work = HiddenWork()
    work.begin_wait(10)
    work.add_run(Interval(0, 14))
    work.end_wait(20)
    work.add_run(Interval(14, 30))
    assert (work.busy_ns, work.hidden_ns) == (30, 30 - 4 - 6)


def test_waits_are_kept_only_while_a_run_may_lie_in_them() -> None:
    work = HiddenWork()
    for begin in range(0, 100, 10):
        work.begin_wait(begin)
        work.end_wait(begin + 1)
    work.add_run(Interval(0, 90))
    assert list(work._waits) == [Interval(90, 91)]


# -- the hook ---------------------------------------------------------------------------------------------------------


class FakeHook:
    """Answers what it is told to: `result_of(episode)` at once, None: not yet."""

    result_of: Any = None

    def __init__(self, cfg: HookConfig, should_stop: Any, on_done: Any) -> None:
        self.on_done, self.polls = on_done, 0

    def submit(self, episode: Episode) -> None:
        result = type(self).result_of(episode)
        if result is not None:
            self.on_done(result)

    def poll(self) -> None:
        self.polls += 1


class Clock:
    """Every reading is 10 ns after the one before."""

    now = 0

    def now_ns(self) -> int:
        self.now += 10
        return self.now


def hook_of(
    monkeypatch: pytest.MonkeyPatch, result_of: Any, *, is_discrete: bool = False
) -> tuple[TrainingHook, list[str]]:
    monkeypatch.setattr(training_hook, "EpisodeHook", type("Fake", (FakeHook,), {"result_of": staticmethod(result_of)}))
    warnings: list[str] = []
    steps = EpisodeSteps(YES, 3)
    return TrainingHook(CONFIG, steps, lambda: False, warnings.append, Clock(), is_discrete=is_discrete), warnings


def play(hook: TrainingHook, episodes: int) -> None:
    """Plays episodes of two steps in both environments, which end together."""
    for t in range(0, 3 * episodes, 3):
        for obs, output, outcome in (step(t), step(t + 1, ends=(0, 1)), step(t + 2, resets=(0, 1))):
            hook.add(obs, output, outcome, env_steps=100 + t)


def test_episodes_are_counted_with_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([Interval(0, 15), Interval(15, 35)])  # each ends in the wait of its own: 10 to 20, and 30 to 40
    hook, warnings = hook_of(monkeypatch, lambda episode: HookResult(episode.index, next(runs), None))
    play(hook, 1)
    assert hook.totals() == HookTotals(2, 0, 35, 35 - 5 - 5 - 5)
    assert warnings == []


def test_failures_are_counted_and_reported_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = "Traceback ...\nValueError: no reward"
    hook, warnings = hook_of(monkeypatch, lambda episode: HookResult(episode.index, None, error))
    play(hook, 2)
    assert hook.totals() == HookTotals(4, 4, 0, 0)
    assert warnings == [
        "collect.hook failed for the training episode that ended at env step 100: ValueError: no reward; training goes"
        " on. Further failures are only counted: collect/post_failures"
    ]
    assert capsys.readouterr().err == f"{error}\n"


def test_an_episode_that_is_too_long_is_left_out_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    hook, warnings = hook_of(monkeypatch, lambda episode: pytest.fail("handed over"))
    for t in range(0, 16, 8):
        for k in range(8):
            ends, resets = ((0, 1) if k == 6 else ()), ((0, 1) if k == 7 else ())
            hook.add(*step(t + k, ends=ends, resets=resets), env_steps=t)
    assert warnings == [
        "collect.hook: a training episode has more than 3 steps and is not handed over, nor will others be;"
        " env.kwargs.max_episode_steps=N ends episodes earlier, or allows longer ones"
    ]


def test_waits_are_not_kept_where_the_hook_never_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    hook, _ = hook_of(monkeypatch, lambda episode: HookResult(episode.index, None, "the worker of the hook exited"))
    play(hook, 20)
    assert len(hook._work._waits) == 1, "the last one, which had not ended when the result came"


def test_an_episode_whose_hook_was_stopped_is_neither_done_nor_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    hook, warnings = hook_of(monkeypatch, lambda episode: HookResult(episode.index, None, STOPPED))
    play(hook, 1)
    assert (hook.totals(), warnings) == (HookTotals(0, 0, 0, 0), [])


@pytest.mark.parametrize(("is_discrete", "action"), [(False, -1.0), (True, -3.0)])
def test_an_action_is_handed_over_as_the_environment_gets_it(
    monkeypatch: pytest.MonkeyPatch, is_discrete: bool, action: float
) -> None:
    """A Gaussian policy draws beyond its bounds, which then cut it; the number of a discrete action is no bound."""
    actions = []

    def result_of(episode: Episode) -> HookResult:
        actions.append(episode.action.ravel().tolist())
        return HookResult(episode.index, Interval(0, 1), None)

    hook, _ = hook_of(monkeypatch, result_of, is_discrete=is_discrete)
    hook.add(*step(3, ends=(0, 1)), env_steps=100)
    assert actions == [[action], [action]]
