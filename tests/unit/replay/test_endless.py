"""An endless source of rows: exact cycles, another order in each, and one number as its state."""

from __future__ import annotations

import json

import numpy as np
import pytest

from offpolicy.replay.endless import EndlessRows

TEN = np.arange(10, dtype=np.float32)[:, None]


def endless(seed: int = 0, rank: int = 0, num_ranks: int = 1, rows: np.ndarray = TEN) -> EndlessRows:
    return EndlessRows(rows, seed, rank, num_ranks)


def taken(source: EndlessRows, batches: int, batch: int = 4) -> list[int]:
    return np.concatenate([source.take(batch) for _ in range(batches)]).tolist()


def test_every_cycle_has_every_row_once_and_an_order_of_its_own() -> None:
    found = taken(endless(), batches=10)
    cycles = [found[start : start + 10] for start in range(0, 40, 10)]
    assert all(sorted(cycle) == list(range(10)) for cycle in cycles)
    assert len({tuple(cycle) for cycle in cycles}) == 4


def test_the_number_of_complete_cycles_is_exact() -> None:
    source, counts = endless(), []
    for _ in range(6):
        source.take(4)
        counts.append(source.cycle)
    assert counts == [0, 0, 1, 1, 2, 2]


def test_batches_larger_than_the_set_go_through_it_more_than_once() -> None:
    assert np.bincount(endless().take(35), minlength=10).tolist().count(4) == 5


def test_the_same_seed_gives_the_same_rows_and_another_one_others() -> None:
    assert taken(endless(3), 10) == taken(endless(3), 10)
    assert taken(endless(3), 10) != taken(endless(4), 10)


@pytest.mark.parametrize("before", [0, 1, 2, 3, 7])
def test_it_goes_on_from_its_state_in_the_middle_of_a_cycle(before: int) -> None:
    whole = endless()
    taken(whole, before) if before else None
    state = json.loads(json.dumps(whole.state()))
    again = endless()
    again.set_state(state)
    assert taken(again, 8) == taken(whole, 8)


def test_another_beginning_has_another_head_and_ranks_agree_on_it() -> None:
    heads = {tuple(EndlessRows(TEN, 0, path=path).take(10).tolist()) for path in ((), (300,), (500,))}
    assert len(heads) == 3
    ranks = [EndlessRows(TEN, 0, rank, 2, path=(300,)) for rank in range(2)]
    assert sorted(np.stack([rank.take(5) for rank in ranks]).ravel().tolist()) == list(range(10))


@pytest.mark.parametrize("before", [(), (300,)])
def test_what_goes_on_keeps_the_order_of_its_own_beginning(before: tuple[int, ...]) -> None:
    whole = EndlessRows(TEN, 0, path=before)
    whole.take(4)
    again = EndlessRows(TEN, 0, path=(500,))
    again.prepare(4)  # an order of the other beginning is at hand
    again.set_state(json.loads(json.dumps(whole.state())))
    assert taken(again, 8) == taken(whole, 8)


def test_what_was_prepared_changes_nothing() -> None:
    plain, prepared = endless(), endless()
    found = []
    for _ in range(8):
        prepared.prepare(9)
        found += prepared.take(4).tolist()
    assert found == taken(plain, 8)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_take_different_rows_and_all_of_them_together(num_ranks: int) -> None:
    ranks = [endless(rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    found = np.stack([rank.take(40) for rank in ranks], axis=1).ravel()
    cycles = [found[start : start + 10].tolist() for start in range(0, 40 * num_ranks, 10)]
    assert all(sorted(cycle) == list(range(10)) for cycle in cycles)


def test_an_empty_set_is_refused_when_it_is_made() -> None:
    with pytest.raises(ValueError, match="no rows"):
        endless(rows=TEN[:0])


class Cycled:
    """ColossalAI's CycledDataLoader over a sampler whose epoch nobody sets."""

    def __init__(self, rows: int, seed: int) -> None:
        self._rows, self._seed, self.count = rows, seed, 0
        self._left: list[int] = []

    def take(self, batch: int) -> list[int]:
        if not self._left:
            self._left, self.count = np.random.default_rng(self._seed).permutation(self._rows).tolist(), 0
        else:
            self.count += 1
        given, self._left = self._left[:batch], self._left[batch:]
        return given


def test_a_loader_without_epochs_repeats_its_order_and_counts_batches() -> None:
    """The negative control of the first two tests."""
    loader = Cycled(10, 0)
    found = [row for _ in range(6) for row in loader.take(4)]
    assert found[:10] == found[10:20]
    assert loader.count == 2  # complete cycles: 2 as well, but it was 2 after the first one too
