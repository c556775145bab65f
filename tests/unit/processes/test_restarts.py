"""Which deaths of collectors and learners are survived, and how many."""

from __future__ import annotations

import pytest

from offpolicy.processes.restarts import RestartPolicy, Restarts


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.promise("restart")
@pytest.mark.parametrize(
    ("code", "error", "on_error", "expected"),
    [
        (-9, None, "raise", True),
        (-11, None, "raise", True),
        (3, None, "raise", False),
        (0, None, "raise", False),
        (1, "EnvFailure", "raise", False),
        (1, "EnvFailure", "restart", True),
        (1, "EnvWorkerKilled", "raise", True),
        (65, "NumericsError", "restart", False),
        (-11, "NumericsError", "restart", False),  # it crashed on the way out
        (70, "HangError", "restart", False),
        (1, "ZeroDivisionError", "restart", False),
    ],
)
def test_signals_are_survived_and_exceptions_of_the_environment_if_wanted(
    code: int, error: str | None, on_error: str, expected: bool
) -> None:
    restarts = Restarts(RestartPolicy(4, on_error), Clock())
    message = {"error": error, "text": "..."} if error else {}
    assert restarts.is_survivable(code, message, has_begun=True) == expected


def test_without_restarts_nothing_is_survived() -> None:
    assert not Restarts(RestartPolicy(0, "restart"), Clock()).is_survivable(-9, {}, has_begun=True)


def test_the_fifth_death_of_a_collector_in_ten_minutes_is_a_crash_loop_that_names_all_causes() -> None:
    clock = Clock()
    restarts = Restarts(RestartPolicy(4), clock)
    for number in range(4):
        restarts.add(0, -11, {}, 10 * number)
        assert restarts.crash_loop(0) is None
        clock.now_s += 100.0
    restarts.add(1, -9, {}, 35)  # another collector has its own
    assert restarts.crash_loop(1) is None
    restarts.add(0, 1, {"text": "env 0 failed in step\nTraceback"}, 40)
    assert restarts.crash_loop(0) == (
        "crash loop: it died 5 times within 10 minutes: at env step 0 it was killed by SIGSEGV; at env step 10 it was"
        " killed by SIGSEGV; at env step 20 it was killed by SIGSEGV; at env step 30 it was killed by SIGSEGV; at env"
        " step 40 it failed: env 0 failed in step"
    )


def test_deaths_of_more_than_ten_minutes_ago_are_forgotten() -> None:
    clock = Clock()
    restarts = Restarts(RestartPolicy(1), clock)
    for _ in range(5):
        restarts.add(0, -9, {}, 0)
        assert (restarts.crash_loop(0), restarts.number(0)) == (None, "restart 1 of at most 1")
        clock.now_s += 601.0
    assert restarts.total == 5


@pytest.mark.parametrize(
    ("code", "error", "expected"),
    [(-9, {}, True), (-11, {}, True), (-9, {"error": "HangError"}, False), (1, {}, False), (0, {}, False)],
)
def test_of_learners_only_a_death_by_a_signal_is_survived(code: int, error: dict[str, str], expected: bool) -> None:
    assert Restarts(RestartPolicy(1), Clock()).is_learner_survivable(code, error) == expected
    assert not Restarts(RestartPolicy(0), Clock()).is_learner_survivable(code, error)
