"""The shared ring: committed rows only, wrap-around, recycling, a dead writer."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from offpolicy.replay.ring import Ring
from tests.fakes import fill_from
from tests.interleaving import deaths

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


def test_a_restored_ring_with_more_room_has_no_older_rows() -> None:
    ring = make_ring(16)
    fill_from(ring, 10, rows(10, 4))
    assert (ring.oldest, ring.committed) == (10, 14)
    ring.append(rows(14, 2))
    assert ring.oldest == 10
    assert not read(ring, [9])[1].any()


def test_read_range_leaves_out_recycled_rows() -> None:
    ring = make_ring(4)
    ring.append(rows(0, 4))
    ring.append(rows(4, 3))
    assert np.array_equal(ring.read_range(0, 7), rows(3, 4))
    assert len(ring.read_range(7, 7)) == 0


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


@pytest.mark.promise("no-torn-row")
def test_a_row_can_be_read_whole_or_not_at_all_wherever_its_writer_died() -> None:
    ends = set()
    for run in deaths():
        ring = make_ring(8)
        ring.append(rows(0, 6))
        run(partial(ring.append, rows(6, 3)))
        ends.add(ring.committed)
        kept = list(range(ring.oldest, ring.committed))
        out, intact = read(ring, kept)
        assert intact.all()
        assert np.array_equal(out, rows(kept[0], len(kept)))
    assert ends == {6, 9}
