"""The running returns: within episodes, once per row, and saved to the bit."""

from __future__ import annotations

import json

import numpy as np

from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.replay_source import RunningReturns
from offpolicy.replay.row_layout import IS_TERMINATED, IS_TRUNCATED, OFFSET_SHIFT, RowLayout

LAYOUT = RowLayout(obs_dim=2, action_dim=1)
STEP = 1 << OFFSET_SHIFT


def ring_of(rewards: list[list[float]], codes: list[list[int]]) -> ReplayRing:
    """A ring of vector steps [T, N]."""
    num_envs = len(rewards[0])
    ring = ReplayRing(
        memoryview(bytearray(ReplayRing.room_for(64, LAYOUT, num_envs, 1))), LAYOUT, 64, num_envs=num_envs
    )
    obs = np.zeros((num_envs, 2), np.float32)
    ring.write(np.empty((0, 4), np.float32), obs)
    for reward, code in zip(rewards, codes, strict=True):
        tails = np.zeros((num_envs, 4), np.float32)
        tails[:, 1], tails[:, 2] = reward, 0.5
        tails.view(np.uint32)[:, 3] = code
        ring.write(tails, obs)
    return ring


def returns_of(ring: ReplayRing) -> RunningReturns:
    return RunningReturns([ring], LAYOUT, discount=0.5)


END = STEP | IS_TERMINATED
CUT = STEP | IS_TRUNCATED
RING = ring_of(
    [[1.0, 2.0], [1.0, 2.0], [9.0, 2.0], [1.0, 9.0], [4.0, 4.0]],
    [[STEP, STEP], [END, STEP], [0, CUT], [STEP, 0], [STEP, STEP]],
)
HISTORY = [1.0, 2.0, 1.5, 3.0, 3.5, 1.0, 4.5, 4.0]  # the rows of autoreset, with reward 9, are no steps


def test_returns_are_those_within_episodes() -> None:
    returns = returns_of(RING)
    returns.add_rows(0, 0, RING.committed)
    values = np.array(HISTORY)
    expected = [len(values), values.mean(), np.square(values - values.mean()).sum(), values.max()]
    np.testing.assert_allclose(returns.take_moments().numpy(), expected)
    assert returns.take_moments().tolist() == [0.0] * 4


def test_rows_in_pieces_and_from_a_saved_state_are_the_same() -> None:
    whole, first = returns_of(RING), returns_of(RING)
    whole.add_rows(0, 0, RING.committed)
    first.add_rows(0, 0, 4)
    saved = json.loads(json.dumps(first.state()))
    second = returns_of(RING)
    second.set_state(saved)
    second.add_rows(0, 4, RING.committed)
    assert second.state() == whole.state()
    assert first.take_moments()[0] + second.take_moments()[0] == len(HISTORY)
