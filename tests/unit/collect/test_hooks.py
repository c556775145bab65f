"""Hooks of episodes: whole episodes, answers, failures that end nothing, and what the collector did not wait for."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import numpy as np
import pytest

from offpolicy.collect import training_hook
from offpolicy.collect.episode_hook import MESSAGE_BYTES, HookConfig, HookResult, check_hook
from offpolicy.collect.post import Episode, save_episode, serve
from offpolicy.collect.training_hook import EpisodeSteps, TrainingHook
from offpolicy.errors import ConfigError
from offpolicy.types import HookTotals, PolicyOutput, StepOutcome
from tests.processes.example_hooks import episode

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


def hook_of(monkeypatch: pytest.MonkeyPatch, result_of: Any) -> tuple[TrainingHook, list[str]]:
    monkeypatch.setattr(training_hook, "EpisodeHook", type("Fake", (FakeHook,), {"result_of": staticmethod(result_of)}))
    warnings: list[str] = []
    steps = EpisodeSteps(YES, 3)
    return TrainingHook(CONFIG, steps, lambda: False, warnings.append, Clock(), is_discrete=False), warnings


def play(hook: TrainingHook, episodes: int) -> None:
    """Plays episodes of two steps in both environments, which end together."""
    for t in range(0, 3 * episodes, 3):
        for obs, output, outcome in (step(t), step(t + 1, ends=(0, 1)), step(t + 2, resets=(0, 1))):
            hook.add(obs, output, outcome, env_steps=100 + t)


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


@pytest.mark.mp
def test_what_cannot_be_called_is_refused_with_the_cause() -> None:
    with pytest.raises(ConfigError, match=r"^eval\.hook: got 'os\.path:sep', .* TypeError: sep is str"):
        check_hook("os.path:sep")


def test_every_episode_is_answered_in_order_with_its_times_and_its_error() -> None:
    seen: list[int] = []

    def hook(given: Episode) -> None:
        seen.append(given.index)
        if given.index == 1:
            raise ValueError("odd")

    evaluation, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with evaluation, worker:
        for index in range(2):
            with open(os.memfd_create("episode"), "w+b") as file:
                save_episode(episode(index), file)
                socket.send_fds(evaluation, [b"episode"], [file.fileno()])
        evaluation.shutdown(socket.SHUT_WR)
        serve(hook, worker)
        answers = [json.loads(evaluation.recv(1 << 14)) for _ in range(2)]
    assert seen == [answer["index"] for answer in answers] == [0, 1]
    assert answers[0]["error"] is None
    assert answers[1]["error"].splitlines()[-1] == "ValueError: odd"
    assert all(0 < answer["start_ns"] <= answer["end_ns"] for answer in answers)


LONG = "\U0001f600" * 20_000  # twelve bytes of JSON each: the message arrived cut, and its reader's process ended


@pytest.mark.parametrize(("text", "last"), [(LONG, LONG[:8_192]), ("here" + "\n" * 20_000, "ValueError: here")])
def test_the_error_of_a_hook_fits_a_message_and_has_a_last_line(text: str, last: str) -> None:
    def hook(given: Episode) -> None:
        raise ValueError(text)

    evaluation, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with evaluation, worker, open(os.memfd_create("episode"), "w+b") as file:
        save_episode(episode(), file)
        socket.send_fds(evaluation, [b"episode"], [file.fileno()])
        evaluation.shutdown(socket.SHUT_WR)
        serve(hook, worker)
        answer = json.loads(evaluation.recv(MESSAGE_BYTES))
    assert answer["error"].splitlines()[-1] == last
