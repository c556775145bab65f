from __future__ import annotations

import pytest

from tests.simulated_threads import SimulatedThreads


def test_threads_that_wait_for_ever_fail_the_test_instead_of_hanging_it() -> None:
    threads = SimulatedThreads()
    with pytest.raises(RuntimeError, match="every simulated thread waits"):
        threads.run([lambda: threads.wait(lambda: False)] * 2, lambda: False)


def test_a_function_that_returns_lets_the_others_go_on() -> None:
    threads, done = SimulatedThreads(), list[str]()

    def last() -> None:
        threads.sleep(2)
        done.append("last")

    threads.run([lambda: done.append("first"), last], lambda: len(done) == 2)
    assert (done, threads.now_ns()) == (["first", "last"], 2)
