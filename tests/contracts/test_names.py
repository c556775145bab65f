"""The names in conf/ are those of the dataclasses; every file composes to a run in which everything is read."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from offpolicy.config.algorithms import AlgoConfig
from offpolicy.config.overrides import conf_dir, group_options, load_config
from offpolicy.config.schema import RunConfig, unread_options
from offpolicy.config.sections import RUNNER_DEFAULT_MODE, CollectConfig, RunnerConfig
from offpolicy.envs.make import find_spec

ENVIRONMENTS = [name for name in group_options()["env"] if name != "gym"]


def choices(config: type[Any], name: str) -> list[str]:
    return sorted(next(spec.metadata["choices"] for spec in dataclasses.fields(config) if spec.name == name))


def test_algorithms_and_runners_have_files_and_files_have_algorithms_and_runners() -> None:
    assert sorted(group_options()["algo"]) == choices(AlgoConfig, "name")
    assert sorted(group_options()["runner"]) == sorted(RUNNER_DEFAULT_MODE) == choices(RunnerConfig, "name")
    assert set(RUNNER_DEFAULT_MODE.values()) <= set(choices(CollectConfig, "mode"))


def test_a_file_selects_what_has_its_name() -> None:
    for algo in group_options()["algo"]:
        assert load_config([f"algo={algo}"]).algo.name == algo
    for stage in group_options()["stage"]:
        teacher = ["teacher=runs/teacher"] if stage == "adapt" else []
        assert load_config(["algo=hora", "env=hand_rotation", f"stage={stage}", *teacher]).algo.stage == stage
    for runner in group_options()["runner"]:
        algo = "appo" if runner == "appo" else "sac"
        assert load_config([f"runner={runner}", f"algo={algo}"]).runner.name == runner


@pytest.mark.promise("default-runner")
def test_the_default_runner_fits_the_algorithm() -> None:
    runners = {algo: load_config([f"algo={algo}"]).runner.name for algo in group_options()["algo"]}
    assert runners == {algo: "appo" if algo in ("appo", "hora") else "single_gpu" for algo in runners}


@pytest.mark.slow
def test_every_algorithm_can_be_tried_in_every_environment_for_a_few_thousand_steps() -> None:
    for algo in group_options()["algo"]:
        for env in ENVIRONMENTS:
            assert load_config([f"algo={algo}", f"env={env}", "total_timesteps=5000"]).total_timesteps == 5000


def test_every_file_of_a_group_composes_to_a_valid_run() -> None:
    for group in ("env", "logging", "experiment"):
        for option in set(group_options()[group]) - {"gym"}:
            config = load_config([f"{group}={option}"])
            assert RunConfig.from_mapping(config.to_mapping()) == config


def test_conf_holds_values_only() -> None:
    files = sorted(conf_dir().rglob("*.yaml"))
    assert files
    assert [path.name for path in files if "_target_" in path.read_text()] == []


def test_every_environment_file_names_a_registered_environment() -> None:
    for env in ENVIRONMENTS:
        assert find_spec(load_config([f"env={env}"]).env.id).max_episode_steps is not None


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
