"""Words that are no `key=value` of ours are answered with one that is. `contracts/test_mistakes.py` has more."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.config.parsing import KEY_ALLOWED
from offpolicy.config.sections import SAC
from offpolicy.config.tokens import instead_of_several, looks_like_id, misshapen

OPTIONS = {"algo": ("sac", "td3"), "env": ("pendulum",)}


@pytest.mark.parametrize(
    ("token", "end"),
    [
        ("seed=1", None),
        ("--seed 3", "write seed=3"),
        ("--seed x", "write seed=1"),
        ("--env.kwargs.g 9", "write env.kwargs.g=9"),
        ("--env.kwargs.g", "write env.kwargs.g=<value>"),
        ("env.kwargs.g", "write env.kwargs.g=<value>"),
        ("--seed.nosuch", "offpolicy train --help all shows the keys"),
        ("--algo=td3", "write algo=td3"),
        ("--nosuch", "offpolicy train --help all shows the keys"),
        ("capacity", "offpolicy train --help capacity shows the keys"),
        ("~env.kwargs.g", "leave it out"),
        ("~algo.max_grad_norm", "write algo.max_grad_norm=null, its default"),
        ("~seed", "write seed=1, its default"),
        ("algo", "write algo=sac"),
    ],
)
def test_a_word_is_answered_with_one_that_is_understood(token: str, end: str | None) -> None:
    said = misshapen(token, OPTIONS, SAC)
    assert said is None if end is None else said is not None and said.endswith(f"; {end}")


def test_a_key_that_cannot_be_written_is_answered_with_those_that_can() -> None:
    said = misshapen("--env.kwargs.a+b=1", OPTIONS, SAC)
    assert said == f"--env.kwargs.a+b=1: got the key 'env.kwargs.a+b', allowed {KEY_ALLOWED}"


def test_a_run_or_its_configuration_is_answered_with_the_way_to_use_it(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.touch()
    assert str(misshapen(str(file), OPTIONS, SAC)).endswith(f"with config={file}")
    assert str(misshapen(str(tmp_path), OPTIONS, SAC)).endswith(f"continue that run with: offpolicy resume {tmp_path}")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("algo.hidden_dims", "write algo.hidden_dims=[1,2]"),
        ("env.kwargs.x", "write a list as env.kwargs.x=[1,2]"),
        ("run_dir", "write it as text: run_dir='\"1,2\"'"),
        ("device", "write device=1, and a command for each of the others"),
        ("seed", "write seed=1, and a command for each of the others"),
        ("log.panel", "write log.panel=1, and a command for each of the others"),
    ],
)
def test_several_values_are_a_list_a_text_or_several_commands(key: str, said: str) -> None:
    assert instead_of_several(key, "1,2", OPTIONS) == said


@pytest.mark.parametrize(
    ("key", "text", "word"),
    [
        ("seed", "range(1,3)", "seed=1"),
        ("algo.hidden_dims", "choice([64],[128])", "algo.hidden_dims=[256,256]"),
        ("replay.demos", "glob(*)", "replay.demos=null"),
        ("env", "glob(*)", "env=pendulum"),
    ],
)
def test_a_function_is_answered_with_a_value_that_can_be_typed(key: str, text: str, word: str) -> None:
    """It was cut at its first comma: `write seed=range(1`."""
    said = f"write {word}, and a command for each of the others; offpolicy sweep searches among many"
    assert instead_of_several(key, text, OPTIONS) == said


@pytest.mark.parametrize(
    ("text", "is_id"),
    [("Hopper-v5", True), ("ALE/Pong-v5", True), ("my.envs:Maze_2-v0", True), ("hopper", False), ("v5", False)],
)
def test_an_id_is_told_from_a_name(text: str, is_id: bool) -> None:
    assert looks_like_id(text) == is_id
