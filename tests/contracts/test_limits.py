"""The size of the house and of its tests: numbers that only fall.

`counts.toml` has the limit of each count beside what was counted at two earlier states of the repository. Who lowers a
count lowers its limit; who must raise one takes something out elsewhere.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.contracts.counts import ROOT, counts_of, package_lines, sources_of
from tests.contracts.types_met import types_met

TABLES: dict[str, dict[str, float]] = tomllib.loads(Path(__file__).with_name("counts.toml").read_text())


def over(counts: Mapping[str, float], table: str = "limits") -> list[str]:
    limits = TABLES[table]
    return [f"{name}: {counts[name]}, allowed {limits[name]}" for name in counts if counts[name] > limits[name]]


def test_the_house_does_not_grow() -> None:
    assert over(counts_of(sources_of(None))) == []


def test_no_package_has_more_lines_than_its_budget() -> None:
    assert over(package_lines(sources_of(None)), "packages") == []


@pytest.mark.slow
@pytest.mark.mp
def test_a_step_meets_no_more_types_of_ours() -> None:
    assert over({way: len(types) for way, types in types_met(ROOT).items()}) == []
