"""Wrong values of every key, in files and as they are typed: refused with key and range, before anything starts."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offpolicy.config.overrides import load_config
from offpolicy.config.parsing import nested
from offpolicy.config.schema import RunConfig, specs
from offpolicy.errors import ConfigError
from tests.conftest import REPOSITORY

BOUNDS = ("ge", "gt", "le", "lt")
# Values of other types, by the type of a key.
OTHER_TYPES: dict[Any, tuple[Any, ...]] = {
    bool: (3, 0.5, "t", [True]), int: (True, 0.5, math.nan, math.inf, "t", [1]),
    float: (True, math.nan, math.inf, -math.inf, "t", [1]), str: (3, 0.5, ["t"]),
    tuple: (3, "t", [64, "t"], [0.5], [True]), tuple[float, ...]: (3, "t", [64, "t"], [True]), dict: (3, "t", [1]),
}  # fmt: skip
# Texts that a grammar may stumble over.
NASTY = (
    *("", " ", "???", "${seed}", "${nosuch}", "${", "[", "]", "{a:", "'", '"', "\\"),
    *("a=b", "=", ",", "~", "#", "\n", "é", "a,b", "'a b", "1e400", "$(x)", "@"),
)
# What the command does before it refuses: an audit hook writes it down.
AUDIT = """
import os, sys
EVENTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.mkdir", "os.rename")
def note(event, arguments):
    if event in EVENTS:
        os.write(2, f"audit: {event} {arguments}\\n".encode())
sys.addaudithook(note)
"""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A key: its type, whether it may be null, and its limits."""

    key: str
    kind: Any
    is_optional: bool
    limits: dict[str, Any]

    def wrong_values(self) -> Iterator[Any]:
        """Values of other types, out of the range, no choice, and null where that means nothing."""
        yield from OTHER_TYPES[self.kind]
        if self.kind in (int, float):
            low, high = (self.limits.get(a, self.limits.get(b)) for a, b in (("ge", "gt"), ("le", "lt")))
            yield from [] if low is None else [math.ceil(low) - 1, *([low] if "gt" in self.limits else [])]
            yield from [] if high is None else [math.floor(high) + 1, *([high] if "lt" in self.limits else [])]
        if "choices" in self.limits:
            yield self.limits["choices"][0] + "x"
        if not self.is_optional:
            yield None


def leaves(cls: Any = RunConfig, prefix: str = "") -> Iterator[Leaf]:
    hints = typing.get_type_hints(cls)
    for spec in dataclasses.fields(cls):
        hint = hints[spec.name]
        if dataclasses.is_dataclass(hint):
            yield from leaves(hint, f"{prefix}{spec.name}.")
        else:
            is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
            is_optional = types.NoneType in typing.get_args(hint)
            kind = typing.get_args(hint)[0] if is_union else typing.get_origin(hint) or hint
            yield Leaf(prefix + spec.name, kind, is_optional, dict(spec.metadata))


LEAVES = {leaf.key: leaf for leaf in leaves()}


def check_said(leaf: Leaf, value: Any, problem: str) -> None:
    """Fails unless a refusal names the key, what was got, and what is allowed."""
    assert problem.startswith(f"{leaf.key}: got {value!r}"), (leaf.key, value)
    assert "allowed " in problem
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and leaf.kind in (int, float):
        assert all(str(leaf.limits[bound]) in problem for bound in BOUNDS if bound in leaf.limits), problem
    assert all(choice in problem for choice in leaf.limits.get("choices", ())), problem


@pytest.mark.promise("refusals")
def test_every_wrong_value_of_every_key_is_refused_with_key_and_range() -> None:
    for key, leaf in LEAVES.items():
        for value in leaf.wrong_values():
            with pytest.raises(ConfigError) as caught:
                RunConfig.from_mapping(nested({key: value}))
            (problem,) = caught.value.problems
            check_said(leaf, value, problem)


def test_null_is_accepted_where_it_has_a_meaning() -> None:
    for key, leaf in LEAVES.items():
        value = RunConfig.from_mapping(nested({key: None})) if leaf.is_optional else None
        for part in key.split(".") if leaf.is_optional else ():
            value = getattr(value, part)
        assert value is None


@pytest.mark.promise("refusals")
def test_a_typo_in_any_key_is_refused_with_the_key_that_was_meant() -> None:
    for key in LEAVES:
        typo = key + key[-1]
        with pytest.raises(ConfigError) as caught:
            RunConfig.from_mapping(nested({typo: 1}))
        (problem,) = caught.value.problems
        assert problem == f"{typo}: unknown key; did you mean {key}?"


def test_a_choice_that_yaml_reads_as_a_bool_is_the_word() -> None:
    for given, meant in ((True, "true"), (False, "false"), ("auto", "auto"), ("true", "true")):
        assert RunConfig.from_mapping({"eval": {"beside": given}}).eval.beside == meant


def test_every_key_is_documented() -> None:
    assert [key for key, leaf in LEAVES.items() if not leaf.limits["doc"]] == []
    assert list(specs()) == list(LEAVES)


def test_a_number_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^log\.every_s: got 1000"):
        RunConfig.from_mapping({"log": {"every_s": 10**400}})


def typed(value: Any) -> str:
    """A value in Hydra's grammar: texts are quoted, so that they stay texts."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return "[" + ",".join(map(typed, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


def refusals(words: list[str]) -> tuple[str, ...]:
    try:
        load_config(words)
    except ConfigError as error:
        return error.problems
    return ()


def test_whatever_is_typed_is_taken_or_refused_with_its_key() -> None:
    for key in ("seed", "run_dir", "algo.hidden_dims", "log.panel", "env.kwargs", "env.kwargs.x", "env.id"):
        for text in NASTY:
            said = refusals([f"{key}={text}"])
            assert not said or any(re.match(rf"{re.escape(key)}\b", problem) for problem in said), (key, text)


@pytest.mark.mp
@pytest.mark.promise("refusals")
def test_the_command_refuses_all_at_once_before_it_starts_or_makes_anything(tmp_path: Path) -> None:
    refused = {
        "algo.gamma=2": "algo.gamma: got 2, allowed a number in [0.0, 1.0]",
        "env.num_envs=0": "env.num_envs: got 0, allowed a whole number in [1, 65536]",
        "log.panel=of": "log.panel: got 'of', allowed one of auto, on, off, full; did you mean off?",
        "algo.hidden_dims=[]": "algo.hidden_dims: got [], allowed a list of whole numbers in [1, inf)",
        "sead=3": "sead: unknown key; did you mean seed?",
    }
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "sitecustomize.py").write_text(AUDIT)
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}/audit:{REPOSITORY}"}
    command = [sys.executable, "-m", "offpolicy.cli", "train", *refused, f"run_dir={tmp_path}/run"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert [said for said in refused.values() if f"\n  {said}" not in done.stderr] == []
    assert "audit:" not in done.stderr
    assert os.listdir(tmp_path) == ["audit"]
