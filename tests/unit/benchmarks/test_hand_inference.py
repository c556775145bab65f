"""What the joints tell: which rows are kept, and what a network explains of them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.learning.hand_inference import QUANTITIES, explained, observed
from offpolicy.envs.hand.rotation import FRAME, HISTORY_FRAMES, NUM_PRIVILEGED, OBS_FRAMES
from offpolicy.types import Float32


def test_what_follows_from_the_inputs_is_explained_and_noise_is_not() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(3.0, 2.0, (4_000, 4)).astype(np.float32)
    noise = rng.normal(size=(4_000, 2))
    targets = np.stack((inputs[:, 0] * inputs[:, 1], noise[:, 0], inputs[:, 2] + 2.0 * noise[:, 1]), axis=1)
    found = explained(inputs, targets.astype(np.float32), np.arange(4_000) >= 3_000)
    assert found[0] > 0.95
    assert abs(found[1]) < 0.1
    assert found[2] == pytest.approx(0.5, abs=0.1)  # 2² of 2² + 2²


def test_the_quantities_are_the_columns_of_privileged() -> None:
    covered = [column for columns in QUANTITIES.values() for column in range(columns.start, columns.stop)]
    assert covered == list(range(NUM_PRIVILEGED))


def test_rows_are_kept_once_the_history_is_full_and_the_policy_observes_its_groups_alone() -> None:
    widths = set[int]()

    def stay(obs: Float32) -> Float32:
        widths.add(obs.shape[1])
        return np.zeros((len(obs), 16), np.float32)

    rows = observed(stay, ("obs", "privileged"), hands=3, steps=70, every=20)
    assert widths == {OBS_FRAMES * FRAME + NUM_PRIVILEGED}
    assert rows.hand.tolist() == [0, 1, 2, 0, 1, 2]  # after 40 and 60 steps
    history = rows.groups["proprio_hist"].reshape(-1, HISTORY_FRAMES, FRAME)
    assert np.array_equal(history[:, -OBS_FRAMES:].reshape(6, -1), rows.groups["obs"])
    assert (np.ptp(history[:, :, 0], axis=1) > 0.0).all()  # the noise of each frame: none is filled in
