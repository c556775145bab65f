"""A search space is checked whole before anything starts; each problem names the file, the key and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from offpolicy.analysis.space import Parameter, read_space, words_of
from offpolicy.errors import ConfigError


def written(tmp_path: Path, content: Any) -> Path:
    file = tmp_path / "space.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return file


def test_ranges_and_values_are_read(tmp_path: Path) -> None:
    parameters = {
        "algo.actor_lr": {"low": "1e-4", "high": 0.01, "log": True},
        "algo.policy_delay": {"low": 1, "high": 4},
        "algo.hidden_dims": {"values": [[64, 64], [256, 256]]},
    }
    assert read_space(written(tmp_path, {"parameters": parameters})).parameters == (
        Parameter("algo.actor_lr", (), 1e-4, 0.01, is_log=True),
        Parameter("algo.policy_delay", (), 1, 4, is_whole=True),
        Parameter("algo.hidden_dims", ((64, 64), (256, 256))),
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({}, "parameters: got None, allowed a mapping"),
        (None, "got nothing, allowed a mapping such as {parameters: {algo.gamma: {low: 0.9, high: 0.999}}}"),
        ({"parameters": {"seed": {"low": 1, "high": 2}}, "trials": 3}, "got trials, allowed parameters"),
        ({"parameters": {"algo.name": {"values": ["sac", "td3"]}}}, "algo.name: not allowed: one sweep for each"),
        ({"parameters": {"algo.gama": {"low": 0, "high": 1}}}, "algo.gama: unknown key; did you mean algo.gamma?"),
        ({"parameters": {"algo.gamma": [0.9, 0.99]}}, "algo.gamma: got [0.9, 0.99], allowed {low"),
        ({"parameters": {"algo.gamma": {"low": 0.9}}}, "algo.gamma: got {'low': 0.9}, allowed"),
        ({"parameters": {"algo.gamma": {"low": 0.9, "high": "x"}}}, "algo.gamma.high: got 'x', allowed a number"),
        ({"parameters": {"algo.gamma": {"low": 0.9, "high": 0.8}}}, "algo.gamma: got low=0.9 high=0.8"),
        ({"parameters": {"algo.gamma": {"low": 0.9, "high": 1.5}}}, "gamma: got 1.5, allowed a number in [0.0, 1.0]"),
        ({"parameters": {"algo.gamma": {"low": 0, "high": 1, "log": True}}}, "algo.gamma.log: got true, allowed"),
        ({"parameters": {"algo.gamma": {"low": 0, "high": 1, "step": 2}}}, "algo.gamma.step: got 2, allowed"),
        ({"parameters": {"algo.gamma": {"values": [0.9, 0.99, 0.9]}}}, "values: got 0.9 twice, allowed each value"),
        ({"parameters": {"algo.utd": {"low": 0.5, "high": 1.2, "step": 0.5}}}, "utd.step: got 0.5, allowed one that"),
        ({"parameters": {"algo.gamma": {"values": [0.9]}}}, "algo.gamma.values: got [0.9], allowed a list of two"),
        ({"parameters": {"algo.activation": {"values": ["relu", "gelu"]}}}, "activation: got 'gelu', allowed one of"),
    ],
)  # fmt: skip
def test_bad_input_names_the_key_and_what_is_allowed(tmp_path: Path, content: Any, problem: str) -> None:
    file = written(tmp_path, content)
    with pytest.raises(ConfigError) as refused:
        read_space(file)
    assert any(each.startswith(str(file)) and problem in each for each in refused.value.problems), refused.value


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    content = {"parameters": {"algo.gama": {}, "algo.tau": {"low": 1, "high": 0}, "seed": {"values": [1, 2]}}}
    with pytest.raises(ConfigError) as refused:
        read_space(written(tmp_path, content))
    assert len(refused.value.problems) == 3
    assert refused.value.problems[2].endswith("parameters.seed: not allowed, the sweep sets it")


def test_another_space_or_command_has_another_digest(tmp_path: Path) -> None:
    space = read_space(written(tmp_path, {"parameters": {"algo.gamma": {"values": [0.9, 0.99]}}}))
    other = read_space(written(tmp_path, {"parameters": {"algo.gamma": {"values": [0.9, 0.98]}}}))
    assert len({space.digest([]), space.digest(["algo=td3"]), other.digest([])}) == 3
    assert space.digest(["algo=td3"]) == space.digest(("algo=td3",))


def test_values_are_written_as_overrides() -> None:
    assert words_of({"algo.hidden_dims": (64, 64), "algo.gamma": 0.9}) == ["algo.hidden_dims=[64,64]", "algo.gamma=0.9"]
