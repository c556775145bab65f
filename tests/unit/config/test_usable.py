"""What a suggestion is tried against: the keys of an algorithm, their defaults, and whether a value fits."""

from __future__ import annotations

import pytest

from offpolicy.config.sections import APPO, HORA_ADAPT, SAC, TD3, AlgorithmInfo
from offpolicy.config.usable import example_of, example_word, is_fit, keys_for, specs


@pytest.mark.parametrize(
    ("info", "has", "has_not"),
    [
        (SAC, ("algo.actor_lr", "replay.capacity", "seed"), ("algo.lr", "rollout.length", "algo.target_noise")),
        (TD3, ("algo.target_noise",), ("algo.alpha_lr",)),
        (APPO, ("algo.lr", "rollout.length", "algo.clip"), ("algo.actor_lr", "replay.capacity", "collect.band")),
        (HORA_ADAPT, ("algo.lr",), ("algo.clip",)),
    ],
)
def test_an_algorithm_has_its_keys_and_not_those_of_others(
    info: AlgorithmInfo, has: tuple[str, ...], has_not: tuple[str, ...]
) -> None:
    keys = keys_for(info)
    assert [key for key in has if key not in keys] == []
    assert [key for key in has_not if key in keys] == []


@pytest.mark.parametrize(
    ("key", "value", "fits"),
    [
        ("algo.gamma", 0.9, True),
        ("algo.gamma", 1.5, False),
        ("algo.hidden_dims", [64, 64], True),
        ("algo.hidden_dims", "big", False),
        ("algo.actor_lr", {"start": 1e-3, "end": 0.0, "over": 100}, True),
        ("env.kwargs.anything", "x", True),
        ("log.panel", "of", False),
    ],
)
def test_a_value_fits_or_does_not(key: str, value: object, fits: bool) -> None:
    assert is_fit(key, value) == fits


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("seed", "seed=1"),
        ("env.kwargs.max_episode_steps", "env.kwargs.max_episode_steps=1000"),
        ("env.kwargs.g", "env.kwargs.g=<value>"),
    ],
)
def test_an_argument_of_the_environment_has_no_example(key: str, word: str) -> None:
    assert example_word(key) == word


def test_every_example_is_one_that_its_key_takes() -> None:
    assert [key for key in specs() if not is_fit(key, example_of(key))] == []
