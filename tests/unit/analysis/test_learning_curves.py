"""Learning curves: where they reach a score."""

from __future__ import annotations

import numpy as np
import pytest

from offpolicy.analysis.learning_curves import first_reach


@pytest.mark.parametrize(("score", "place"), [(0.0, 10.0), (5.0, 15.0), (10.0, 20.0), (11.0, float("nan"))])
def test_a_score_between_two_points_is_reached_between_them(score: float, place: float) -> None:
    found = first_reach(np.array([10.0, 20.0, 30.0]), np.array([0.0, 10.0, 2.0]), score)
    assert found == pytest.approx(place, nan_ok=True)
