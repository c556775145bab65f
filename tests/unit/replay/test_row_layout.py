"""What a row of the replay takes, and where its columns are."""

from __future__ import annotations

from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_layout import RowLayout, TransitionLayout


def test_a_row_takes_its_observation_and_the_next_is_not_stored_with_it() -> None:
    layout = RowLayout(17, 6)
    before = TransitionLayout(17, 6).width * 4
    assert (layout.nbytes, before) == (104, 176)
    per_row = ReplayRing.nbytes_for(1_000_000, layout, 1, 1) / 1_000_000
    assert per_row <= 0.6 * before + 0.1


def test_observations_of_bytes_take_a_byte_each_and_come_back_as_numbers() -> None:
    layout = RowLayout(obs_dim=10, action_dim=1, obs_dtype="uint8")
    assert (layout.nbytes, RowLayout(10, 1).nbytes) == (4 * (3 + 1 + 3), 4 * (10 + 1 + 3))


def test_the_columns_of_a_batch_follow_each_other() -> None:
    layout = RowLayout(obs_dim=4, action_dim=2, obs_dtype="uint8")
    numbers = list(range(layout.width))
    columns = [layout.reward, layout.discount, layout.terminated]
    assert numbers[layout.obs] + numbers[layout.action] + columns + numbers[layout.next_obs] == list(range(13))
    assert (layout.half, layout.width, layout.obs_words, layout.slot_width) == (9, 18, 1, 6)
