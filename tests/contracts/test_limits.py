"""The size of the house and of its tests: numbers that only fall.

`counts.toml` has the limit of each count beside what was counted at two earlier states of the repository. Who lowers a
count lowers its limit; who must raise one takes something out elsewhere.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.contracts.counts import ROOT, counts_of, sources_of
from tests.contracts.types_met import types_met

LIMITS: dict[str, float] = tomllib.loads(Path(__file__).with_name("counts.toml").read_text())["limits"]


def over(counts: dict[str, float]) -> list[str]:
    return [f"{name}: {counts[name]}, allowed {LIMITS[name]}" for name in counts if counts[name] > LIMITS[name]]


def test_the_house_does_not_grow() -> None:
    assert over(counts_of(sources_of(None))) == []


@pytest.mark.slow
@pytest.mark.mp
def test_a_step_meets_no_more_types_of_ours() -> None:
    assert over({way: len(types) for way, types in types_met(ROOT).items()}) == []
