"""Lists of values."""

from __future__ import annotations

import pytest

from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError


def test_a_list_of_texts_may_be_empty_and_one_of_numbers_may_not() -> None:
    config = RunConfig.from_mapping({"env": {"wrappers": ["a:b", "c:d"]}, "callbacks": []})
    assert config.env.wrappers == ("a:b", "c:d")
    assert config.callbacks == ()
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_mapping({"env": {"wrappers": [3]}, "callbacks": "a:b", "algo": {"hidden_dims": []}})
    assert caught.value.problems == (
        "algo.hidden_dims: got [], allowed a list of whole numbers in [1, inf)",
        "env.wrappers: got [3], allowed a list of texts",
        "callbacks: got 'a:b', allowed a list of texts",
    )
