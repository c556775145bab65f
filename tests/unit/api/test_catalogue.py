"""The names that a Python program can choose from."""

from __future__ import annotations

from offpolicy.api.catalogue import algorithms, environments


def test_the_algorithms_are_those_of_the_command_line() -> None:
    assert {"sac", "td3", "appo", "hora"} <= set(algorithms())


def test_environments_have_their_gymnasium_ids() -> None:
    found = environments()
    assert found["halfcheetah"] == "HalfCheetah-v5"
    assert "gym" not in found, "it has no id of its own"
