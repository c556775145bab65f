"""The colours of phases."""

from __future__ import annotations

import re

import pytest

from offpolicy.logger.colors import COLORS
from offpolicy.timing.phases import CollectorPhase, LearnerPhase, PackerPhase


@pytest.mark.parametrize("phases", [LearnerPhase, CollectorPhase, PackerPhase])
def test_the_phases_of_a_thread_are_told_apart(phases: type[LearnerPhase]) -> None:
    colors = [COLORS[phase] for phase in phases]
    assert len(set(colors)) == len(colors)
    assert all(re.fullmatch("#[0-9a-f]{6}", color) for color in colors)
