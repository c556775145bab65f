"""The shared ring: committed rows only, wrap-around, recycling, a dead writer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pytest

from offpolicy.replay.ring import Ring
from tests.fakes import fill_from

WIDTH = 3


def make_ring(capacity: int) -> Ring:
    return Ring(memoryview(bytearray(Ring.nbytes(capacity, WIDTH, 4))), WIDTH, np.float32)


def rows(start: int, count: int) -> np.ndarray:
    """Rows that encode their logical index in every column."""
    index = np.arange(start, start + count, dtype=np.float32)
    return np.stack([index, index + 0.25, index + 0.5], axis=1)


def read(ring: Ring, index: list[int]) -> tuple[np.ndarray, np.ndarray]:
    out = np.empty((len(index), WIDTH), dtype=np.float32)
    return out, ring.read(np.array(index), out)


def test_rows_are_found_under_their_logical_index_across_the_wrap() -> None:
    ring = make_ring(5)
    ring.append(rows(0, 4))
    ring.append(rows(4, 3))  # wraps
    out, intact = read(ring, [2, 4, 5, 6])
    assert intact.all()
    assert np.array_equal(out, np.concatenate([rows(2, 1), rows(4, 3)]))
    assert (ring.oldest, ring.committed) == (2, 7)


def test_a_row_recycled_before_the_read_is_reported() -> None:
    ring = make_ring(4)
    ring.append(rows(0, 4))
    ring.append(rows(4, 1))
    _, intact = read(ring, [0, 1])
    assert intact.tolist() == [False, True]


class _HalfWrittenError(Exception):
    pass


def die_mid_write(ring: Ring, count: int) -> None:
    """Reserve, start to overwrite, and never commit: a writer killed in the middle."""

    class Torn(np.ndarray):
        pass

    class Dying:
        def __len__(self) -> int:
            return count

        def __getitem__(self, item: slice) -> np.ndarray:
            raise _HalfWrittenError

    with pytest.raises(_HalfWrittenError):
        ring.append(Dying())  # type: ignore[arg-type]


def test_rows_that_a_dead_writer_had_reserved_are_never_shown() -> None:
    ring = make_ring(4)
    ring.append(rows(0, 4))
    die_mid_write(ring, 2)
    assert (ring.oldest, ring.committed) == (2, 4)
    out, intact = read(ring, [2, 3])
    assert intact.all()
    assert np.array_equal(out, rows(2, 2))
    _, intact = read(ring, [0, 1])
    assert not intact.any()


def test_uncommitted_rows_are_not_counted() -> None:
    ring = make_ring(4)
    die_mid_write(ring, 3)
    assert ring.committed == 0


def test_a_restored_ring_with_more_room_has_no_older_rows() -> None:
    ring = make_ring(16)
    fill_from(ring, 10, rows(10, 4))
    assert (ring.oldest, ring.committed) == (10, 14)
    ring.append(rows(14, 2))
    assert ring.oldest == 10
    assert not read(ring, [9])[1].any()


def test_spans_are_the_rows_in_order_without_a_copy() -> None:
    ring = make_ring(5)
    ring.append(rows(0, 5))
    ring.append(rows(5, 2))
    spans = ring.spans(ring.oldest, ring.committed)
    assert np.array_equal(np.concatenate(spans), rows(2, 5))
    assert all(span.base is not None for span in spans)


def test_read_range_leaves_out_recycled_rows() -> None:
    ring = make_ring(4)
    ring.append(rows(0, 4))
    ring.append(rows(4, 3))
    assert np.array_equal(ring.read_range(0, 7), rows(3, 4))
    assert len(ring.read_range(7, 7)) == 0


def test_copy_range_says_from_which_row_on_the_copy_is_intact() -> None:
    ring = make_ring(5)
    ring.append(rows(0, 5))
    ring.append(rows(5, 2))  # wraps, and recycles rows 0 and 1
    out = np.empty((4, WIDTH), dtype=np.float32)
    assert ring.copy_range(3, out) == 3
    assert np.array_equal(out, rows(3, 4))
    assert ring.copy_range(1, out) == 2
    assert np.array_equal(out[1:], rows(2, 3))


def test_rows_recycled_during_a_range_are_left_out() -> None:
    class RecycledMeanwhile(Ring):
        def spans(self, start: int, stop: int) -> list[np.ndarray]:
            views = super().spans(start, stop)
            if self.committed == 4:
                self.append(rows(4, 3))
            return views

    ring = RecycledMeanwhile(memoryview(bytearray(Ring.nbytes(4, WIDTH, 4))), WIDTH, np.float32)
    ring.append(rows(0, 4))
    assert np.array_equal(ring.read_range(0, 4), rows(3, 1))


# -- a writer that takes over from one that died ----------------------------------------------------------------------


class Mortal:
    """The words of a ring whose writer dies before the store number `last` to one of them."""

    def __init__(self, words: memoryview, last: int) -> None:
        self.words, self.left = words, last

    def __getitem__(self, word: int) -> int:
        return int(self.words[word])

    def __setitem__(self, word: int, value: int) -> None:
        if self.left == 0:
            raise _HalfWrittenError
        self.left -= 1
        self.words[word] = value


def dead_in_append(last: int, capacity: int = 8, before: int = 6, count: int = 3) -> Ring:
    """A ring of `before` rows, 10 env steps each, whose writer died before a store of the next append."""
    ring = make_ring(capacity)
    ring.begin(0)
    ring.append(rows(0, before), 10 * before)
    words = ring._words
    ring._words = Mortal(words, last)  # type: ignore[assignment]
    with contextlib.suppress(_HalfWrittenError):  # none: it died after the last store, before the announcement
        ring.append(rows(before, count), 10 * (before + count))
    ring._words = words
    return ring


@pytest.mark.parametrize("last", range(5))
def test_a_row_is_counted_if_and_only_if_it_is_there_wherever_its_writer_died(last: int) -> None:
    ring = dead_in_append(last)
    env_steps = ring.take_over(60)
    assert (ring.committed, env_steps) == ((9, 90) if last == 4 else (6, 60))
    kept = list(range(ring.oldest, ring.committed))
    assert kept[0] == (1 if last >= 3 else 0)  # those that the dead one had announced to recycle are gone
    ring.append(rows(ring.committed, 2), env_steps + 20)
    kept = list(range(ring.oldest, ring.committed))
    out, intact = read(ring, kept)
    assert intact.all()
    assert np.array_equal(out, rows(kept[0], len(kept)))


def test_a_row_damaged_by_a_dead_writer_is_never_readable_again() -> None:
    ring = make_ring(8)
    ring.append(rows(0, 8))
    die_mid_write(ring, 3)
    ring.take_over(0)
    assert (ring.oldest, ring.committed) == (3, 8)
    ring.append(rows(8, 1))
    assert ring.oldest == 3
    ring.append(rows(9, 3))
    assert ring.oldest == 4


@pytest.mark.parametrize("last", [0, 1])
def test_a_writer_that_dies_while_it_takes_over_hides_no_damage(last: int) -> None:
    ring = make_ring(8)
    ring.append(rows(0, 8))
    die_mid_write(ring, 3)
    words = ring._words
    ring._words = Mortal(words, last)  # type: ignore[assignment]
    with pytest.raises(_HalfWrittenError):
        ring.take_over(0)
    ring._words = words
    assert ring.oldest == 3
    ring.take_over(0)
    assert (ring.oldest, ring.committed) == (3, 8)


class Interrupted:
    """Words between whose readings number `after` and the next one another process takes the ring over."""

    def __init__(self, words: memoryview, after: int, take_over: Callable[[], object]) -> None:
        self.words, self.left, self.take_over = words, after, take_over

    def __getitem__(self, word: int) -> int:
        value = int(self.words[word])
        self.left -= 1
        if self.left == 0:
            self.take_over()
        return value


@pytest.mark.parametrize("after", [1, 2])
def test_a_reader_sees_no_damaged_row_while_another_writer_takes_over(after: int) -> None:
    ring = make_ring(8)
    ring.append(rows(0, 8))
    die_mid_write(ring, 3)
    successor = make_ring(8)
    words = successor._words = ring._words
    ring._words = Interrupted(words, after, lambda: successor.take_over(0))  # type: ignore[assignment]
    assert ring.oldest == 3


def test_env_steps_without_any_row_are_done_again_and_others_are_not() -> None:
    ring = make_ring(8)
    ring.begin(40)
    assert ring.take_over(43) == 40  # n-step rows that were still open
    ring.append(rows(0, 1), 45)
    assert ring.take_over(46) == 46


def test_a_restored_ring_continues_at_the_announced_env_steps() -> None:
    ring = make_ring(8)
    fill_from(ring, 10, rows(10, 4))
    ring.begin(14)
    assert (ring.take_over(14), ring.oldest, ring.committed) == (14, 10, 14)
