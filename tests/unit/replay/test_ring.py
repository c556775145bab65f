"""The shared ring: committed rows only, wrap-around, recycling, a dead writer."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from offpolicy.replay.ring import Ring
from tests.interleaving import deaths

WIDTH = 3


def make_ring(capacity: int, kind: type[Ring] = Ring) -> Ring:
    return kind(memoryview(bytearray(Ring.nbytes(capacity, WIDTH, 4))), WIDTH, np.float32)


def rows(start: int, count: int) -> np.ndarray:
    """Rows that encode their logical index in every column."""
    index = np.arange(start, start + count, dtype=np.float32)
    return np.stack([index, index + 0.25, index + 0.5], axis=1)


def test_rows_are_found_under_their_logical_index_across_the_wrap_unless_they_are_recycled() -> None:
    ring = make_ring(5)
    ring.append(rows(0, 4))
    ring.append(rows(4, 3))  # wraps
    assert (ring.oldest, ring.committed) == (2, 7)
    assert np.array_equal(ring.read_range(0, 7), rows(2, 5))
    assert np.array_equal(ring.read_range(3, 6), rows(3, 3))
    assert len(ring.read_range(7, 7)) == 0


class _HalfWrittenError(Exception):
    pass


class Dying(np.ndarray):
    """Rows whose copy never comes to its end: of a writer killed in the middle."""

    def __getitem__(self, item: object) -> np.ndarray:
        raise _HalfWrittenError


def test_rows_that_a_dead_writer_had_reserved_are_never_shown() -> None:
    ring = make_ring(4)
    ring.append(rows(0, 4))
    with pytest.raises(_HalfWrittenError):
        ring.append(rows(4, 2).view(Dying))
    assert (ring.oldest, ring.committed) == (2, 4)
    assert np.array_equal(ring.read_range(0, 4), rows(2, 2))


def test_rows_recycled_during_a_copy_are_left_out() -> None:
    class RecycledMeanwhile(Ring):
        def spans(self, start: int, stop: int) -> list[np.ndarray]:
            views = super().spans(start, stop)
            if start < self.committed == 4:
                self.append(rows(4, 3))
            return views

    ring = make_ring(4, RecycledMeanwhile)
    ring.append(rows(0, 4))
    assert np.array_equal(ring.read_range(0, 4), rows(3, 1))


@pytest.mark.promise("no-torn-row")
def test_a_row_can_be_read_whole_or_not_at_all_wherever_its_writer_died() -> None:
    ends = set()
    for run in deaths():
        ring = make_ring(8)
        ring.append(rows(0, 6))
        run(partial(ring.append, rows(6, 3)))
        ends.add(ring.committed)
        assert np.array_equal(ring.read_range(0, ring.committed), rows(ring.oldest, ring.committed - ring.oldest))
    assert ends == {6, 9}
