"""Work at an episode's end runs in one worker, and what goes wrong there costs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from offpolicy.collect.episode_hook import STOPPED, EpisodeHook, HookConfig, HookResult
from tests.processes.example_hooks import episode

pytestmark = [pytest.mark.mp, pytest.mark.slow]
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
