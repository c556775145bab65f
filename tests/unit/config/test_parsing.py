"""Nested mappings by dotted key."""

from __future__ import annotations

import pytest

from offpolicy.config.parsing import flatten, is_within, merge


def test_a_nested_mapping_is_flattened_to_dotted_keys() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": None}, "e": [2]}) == {"a.b.c": 1, "a.d": None, "e": [2]}


@pytest.mark.parametrize(("key", "is_inside"), [("log", True), ("log.every_s", True), ("logger", False)])
def test_a_key_is_within_a_section_by_whole_names(key: str, is_inside: bool) -> None:
    assert is_within(key, ("log",)) is is_inside


def test_mappings_merge_and_everything_else_replaces() -> None:
    base = {"algo": {"gamma": 0.9, "tau": 0.1}, "seed": 1}
    assert merge(base, {"algo": {"tau": {"start": 1}}, "seed": [2]}) == {
        "algo": {"gamma": 0.9, "tau": {"start": 1}},
        "seed": [2],
    }
    assert base == {"algo": {"gamma": 0.9, "tau": 0.1}, "seed": 1}
