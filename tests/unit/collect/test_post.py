"""Episodes travel whole, and how much of the work at their end was hidden is a number."""

from __future__ import annotations

import io

import numpy as np

from offpolicy.collect.post import Interval, decode, encode, overlap
from tests.processes.hooks import episode

# -- the bytes --------------------------------------------------------------------------------------------------------


def test_an_episode_arrives_as_it_was() -> None:
    sent = [episode(0), episode(1, length=1)]
    stream = io.BytesIO(b"".join(encode(each) for each in sent))
    for each in sent:
        got = decode(stream)
        assert got is not None
        assert (got.index, got.ep_return, got.measure, got.terminated) == (each.index, 1.5, 0.25, True)
        assert np.isnan(got.success)
        for name in ("obs", "action", "reward"):
            left, right = getattr(got, name), getattr(each, name)
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)
    assert decode(stream) is None


def test_half_an_episode_is_the_end() -> None:
    whole = encode(episode())
    for size in (3, 20, len(whole) - 1):
        assert decode(io.BytesIO(whole[:size])) is None


# -- the number -------------------------------------------------------------------------------------------------------


def spans(*pairs: tuple[int, int]) -> list[Interval]:
    return [Interval(*pair) for pair in pairs]


def test_what_is_done_twice_at_once_counts_once() -> None:
    assert overlap(spans((0, 10), (2, 5), (8, 12)), spans((6, 12), (8, 30))) == 0.5  # 6 of the 12 that were played


def test_the_overlap_is_the_share_of_the_shorter_work_that_was_hidden() -> None:
    assert overlap(spans((0, 80)), spans((80, 100))) == 0.0
    assert overlap(spans((0, 80)), spans((40, 60))) == 1.0
    assert overlap(spans((0, 80)), spans((70, 90))) == 0.5
    assert overlap(spans((0, 80)), []) is None
    assert overlap([], spans((0, 80))) is None


def test_time_in_which_neither_was_busy_is_nobodys() -> None:
    assert overlap(spans((0, 80)), spans((100, 120))) == 0.0


def test_an_episode_that_stood_still_for_the_hook_was_not_played_meanwhile() -> None:
    played, posts = spans((0, 50), (0, 130)), spans((50, 110), (110, 170))
    assert overlap(played, posts) == 80 / 120
    assert overlap(played, posts, spans((50, 110), (130, 170))) == 20 / 70
    assert overlap(spans((0, 50)), spans((50, 110)), spans((0, 50))) is None
