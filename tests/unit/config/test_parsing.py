"""Nested mappings by dotted key."""

from __future__ import annotations

import pytest

from offpolicy.config.parsing import clash, flatten
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError


@pytest.mark.parametrize(
    ("tree", "key", "problem"),
    [
        ({"a": 1}, "a.b", "a: got 1, and a.b beside it; allowed one of both"),
        ({"a": {"b": None}}, "a.b.c.d", "a.b: got None, and a.b.c.d beside it; allowed one of both"),
        ({"a": {"b": 1}}, "a.b", None),  # the same key: the later one wins
        ({"a": {"b": 1}}, "a.c", None),
        ({"ab": 1}, "a.b", None),
        ({}, "a.b", None),
    ],
)
def test_a_key_below_a_plain_value_clashes_with_it(tree: dict[str, object], key: str, problem: str | None) -> None:
    assert clash(tree, key) == problem


def test_a_nested_mapping_is_flattened_to_dotted_keys() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": None}, "e": [2]}) == {"a.b.c": 1, "a.d": None, "e": [2]}


def test_a_list_of_texts_may_be_empty_and_one_of_numbers_may_not() -> None:
    config = RunConfig.from_mapping({"env": {"wrappers": ["a:b", "c:d"]}, "callbacks": []})
    assert config.env.wrappers == ("a:b", "c:d")
    assert config.callbacks == ()
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_mapping({"env": {"wrappers": [3]}, "callbacks": "a:b", "algo": {"hidden_dims": []}})
    assert caught.value.problems == (
        "algo.hidden_dims: got [] (list), allowed a list of whole numbers in [1, inf)",
        "env.wrappers: got [3] (list), allowed a list of texts",
        "callbacks: got 'a:b' (str), allowed a list of texts",
    )
