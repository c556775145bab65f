"""The schema for editors says what the program says: the files of conf/ are valid, and each value is judged alike."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from omegaconf import OmegaConf

from offpolicy.config.json_schema import json_schema, section_names
from offpolicy.config.overrides import conf_dir, load_config
from offpolicy.config.parsing import nested
from offpolicy.config.usable import is_fit, specs

FILES = sorted(conf_dir().rglob("*.yaml"))
GLOBAL = "# @package _global_"
RAMP = {"start": 1e-3, "end": 0.0, "over": 10}
CANDIDATES = (
    *(None, True, False, "", "auto", "full", "true", "nosuch", "linear", "cpu", "off"),
    *({}, {"x": 1}, [], [64, 64], [0], [1.5]),
    *(-1, 0, 1, 2, 7, 0.0, 0.5, 1.0, 1.5, -0.5, 64, 65, 257, 65536, 65537, 2**31 - 1, 2**31, 5e4, 1e-6, 1e9),
    *(RAMP, RAMP | {"over": 0}, RAMP | {"shape": "cosine"}, RAMP | {"shape": "round"}, RAMP | {"start": -1.0}),
    {"start": 1.0},
)  # fmt: skip


@functools.cache
def validator(section: str | None) -> Draft202012Validator:
    return Draft202012Validator(json_schema(section))


def problems(content: Any, section: str | None = None) -> list[str]:
    found = validator(section).iter_errors(content)
    return [f"{'.'.join(map(str, each.absolute_path))}: {each.message}" for each in found]


def test_every_file_of_conf_is_valid() -> None:
    for file in FILES:
        in_section = GLOBAL not in file.read_text() and file.parent.name in section_names()
        content = OmegaConf.to_container(OmegaConf.load(file))  # YAML as Hydra reads it: 1e-3 is a number
        assert problems(content, file.parent.name if in_section else None) == [], file


def test_a_whole_configuration_is_valid() -> None:
    for words in ([], ["algo=appo"], ["algo=hora", "env=hand_rotation"], ["log.tensorboard=full"]):
        assert problems(load_config(words).to_mapping()) == []


@pytest.mark.slow
def test_every_value_is_judged_as_the_program_judges_it() -> None:
    for key in (key for key in specs() if key != "env.kwargs"):
        judged = {repr(value): not problems(nested({key: value})) for value in CANDIDATES}
        assert judged == {repr(value): is_fit(key, value) for value in CANDIDATES}, key


def test_the_keys_of_env_kwargs_are_free() -> None:
    assert problems({"env": {"kwargs": {"anything": [1, {"x": None}]}}}) == []
    assert problems({"env": {"kwargs": 3}}) != []


def test_an_unknown_key_is_refused() -> None:
    assert problems({"algo": {"gama": 0.9}}) != []
    assert problems({"sead": 1}) != []
    assert problems({"gama": 0.9}, "algo") != []
