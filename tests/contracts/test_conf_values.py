"""The files of conf/ name known keys, choose what they say, and set nothing that nothing reads."""

from __future__ import annotations

from offpolicy.config.overrides import group_options, load_config
from offpolicy.config.schema import RunConfig, unread_options
from offpolicy.config.sections import RUNNER_DEFAULT_MODE


def words_of_presets() -> list[list[str]]:
    """The command lines that choose each option of each group, and each algorithm in each family of environments."""
    options = group_options()
    found = [[f"{group}={option}"] for group in ("experiment", "logging") for option in options[group]]
    families = ("pendulum", "cartpole", "inverted_pendulum", "swimmer", "hand_rotation")
    found += [[f"algo={algo}", f"env={env}"] for algo in ("sac", "td3", "flashsac", "appo") for env in families]
    found += [["algo=hora", "env=hand_rotation", "stage=teach"]]
    found += [["algo=hora", "env=hand_rotation", "stage=adapt", "teacher=x"]]
    return found + [[f"runner={runner}"] for runner in options["runner"] if runner != "appo"]


def test_every_preset_is_accepted_and_sets_nothing_that_nothing_reads() -> None:
    """A key that has no such option would be refused."""
    assert [words for words in words_of_presets() if unread_options(load_config(words))] == []


def test_a_runner_has_its_collection_mode() -> None:
    for runner, expected in RUNNER_DEFAULT_MODE.items():
        config = load_config([f"runner={runner}", *(["algo=appo"] if runner == "appo" else [])])
        assert (config.collect.mode, config.collect_mode) == (None, expected)


def test_the_defaults_are_those_of_the_dataclasses() -> None:
    assert load_config([]) == RunConfig()
