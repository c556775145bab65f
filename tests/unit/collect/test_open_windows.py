"""Open n-step rows: saved, restored, and refused where they are none."""

from __future__ import annotations

import numpy as np
import pytest

from offpolicy.collect.open_windows import NUM_SUMS, OpenWindows
from tests.replay_scene import Scene, make_ring


def test_the_open_steps_are_saved_with_a_row_for_each_environment() -> None:
    scene = Scene(np.random.default_rng(0), 2, 3, 30, "float32")
    for _ in range(5):
        scene.step(0.0, 0.0)
    rows, sums = scene.writer.open_windows()
    assert (rows.shape, sums.shape) == ((2 * 2, 3 + 2), (2 * 2, NUM_SUMS))
    assert sums[:, 2].tolist() == [2.0, 2.0, 1.0, 1.0]  # steps summed so far


@pytest.mark.parametrize(
    ("num_rows", "num_sums", "code", "message"),
    [
        (3, 3, 0, "multiples of 2"),
        (4, 2, 0, "multiples of 2"),
        (2, 2, 2**20, "no observation"),
        (2, 2, -1, "no observation"),
    ],
)
def test_saved_windows_that_are_none_are_refused(num_rows: int, num_sums: int, code: int, message: str) -> None:
    windows, sums = OpenWindows(make_ring(10, num_envs=2, n_step=3), 0.9, 3), np.zeros((num_sums, NUM_SUMS))
    sums[:, -1] = code
    with pytest.raises(ValueError, match=message):
        windows.set_state(np.zeros((num_rows, 5), np.float32), sums)
