"""The names in conf/ and the names in the dataclasses are the same names."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from offpolicy.config.overrides import conf_dir, group_options, load_config
from offpolicy.config.schema import RunConfig
from offpolicy.config.sections import RUNNER_DEFAULT_MODE, AlgoConfig, CollectConfig, RunnerConfig


def choices(config: type[Any], name: str) -> tuple[str, ...]:
    return next(spec.metadata["choices"] for spec in dataclasses.fields(config) if spec.name == name)


def test_every_algorithm_has_a_file_and_every_file_an_algorithm() -> None:
    assert sorted(group_options()["algo"]) == sorted(choices(AlgoConfig, "name"))


def test_every_runner_has_a_file_and_every_file_a_runner() -> None:
    assert sorted(group_options()["runner"]) == sorted(choices(RunnerConfig, "name"))


def test_every_runner_has_a_default_collection_mode() -> None:
    assert sorted(RUNNER_DEFAULT_MODE) == sorted(choices(RunnerConfig, "name"))
    assert set(RUNNER_DEFAULT_MODE.values()) <= set(choices(CollectConfig, "mode"))


@pytest.mark.parametrize("algo", group_options()["algo"])
def test_an_algorithm_file_selects_the_algorithm_of_its_name(algo: str) -> None:
    assert load_config([f"algo={algo}"]).algo.name == algo


@pytest.mark.parametrize("stage", group_options()["stage"])
def test_a_stage_file_selects_the_stage_of_its_name(stage: str) -> None:
    teacher = ["teacher=runs/teacher"] if stage == "adapt" else []
    assert load_config(["algo=hora", "env=hand_rotation", f"stage={stage}", *teacher]).algo.stage == stage


@pytest.mark.parametrize("runner", group_options()["runner"])
def test_a_runner_file_selects_the_runner_of_its_name(runner: str) -> None:
    algo = "appo" if runner == "appo" else "sac"
    assert load_config([f"runner={runner}", f"algo={algo}"]).runner.name == runner


@pytest.mark.parametrize(
    "choice",
    [
        f"{group}={option}"
        for group in ("env", "logging", "experiment")
        for option in group_options()[group]
        if (group, option) != ("env", "gym")
    ],
)
def test_every_file_of_a_group_composes_to_a_valid_run(choice: str) -> None:
    config = load_config([choice])
    assert RunConfig.from_mapping(config.to_mapping()) == config


@pytest.mark.parametrize("env", [name for name in group_options()["env"] if name != "gym"])
@pytest.mark.parametrize("algo", group_options()["algo"])
def test_every_environment_can_be_tried_for_a_few_thousand_steps(env: str, algo: str) -> None:
    assert load_config([f"algo={algo}", f"env={env}", "total_timesteps=5000"]).total_timesteps == 5000


def test_a_file_for_an_algorithm_in_a_family_of_environments_is_named_after_both() -> None:
    options = group_options()
    files = {path.stem: path for group in ("algo_env", "stage_env") for path in (conf_dir() / group).glob("*.yaml")}
    families = {
        line.removeprefix("  - override /family: ")
        for path in (conf_dir() / "env").glob("*.yaml")
        for line in path.read_text().splitlines()
        if line.startswith("  - override /family: ")
    }
    heads = {*options["algo"], *(f"hora_{stage}" for stage in options["stage"])}
    assert files.keys() <= {f"{head}_{family}" for head in heads for family in families}  # any other is never loaded
    assert {family for family in families if any(name.endswith(family) for name in files)} == families
    assert not {"algo_env", "stage_env", "family"} & options.keys()  # nobody chooses them


def test_conf_holds_values_only() -> None:
    files = sorted(conf_dir().rglob("*.yaml"))
    assert files
    assert [path.name for path in files if "_target_" in path.read_text()] == []


@pytest.mark.parametrize("env", [name for name in group_options()["env"] if name != "gym"])
def test_every_environment_file_names_a_registered_environment(env: str) -> None:
    from offpolicy.envs.make import find_spec

    assert find_spec(load_config([f"env={env}"]).env.id).max_episode_steps is not None
