"""The names of other trainers lead to our keys, with a value that was tried. `contracts/test_mistakes.py` has more."""

from __future__ import annotations

import pytest

from offpolicy.config.foreign_names import KEYS_BY_NAME, advice, our_keys, without_foreign
from offpolicy.config.sections import APPO, SAC, AlgorithmInfo
from offpolicy.config.usable import specs


def test_every_name_leads_to_a_key_that_exists() -> None:
    keys = {key for keys in KEYS_BY_NAME.values() for key in keys}
    assert sorted(keys - set(specs())) == ["env.kwargs.max_episode_steps"]


@pytest.mark.parametrize(
    ("name", "value", "info", "said"),
    [
        ("learning_rate", 1e-3, SAC, "write algo.actor_lr=0.001 algo.critic_lr=0.001"),
        ("learning-rate", 1e-3, APPO, "write algo.lr=0.001"),
        ("Learning_Rate", -1, APPO, "write algo.lr=0.0003"),
        ("train_freq", 0, SAC, "write algo.utd=1.0"),
        ("train_freq", [1, "episode"], SAC, "write algo.utd=1.0"),
        ("buffer_size", 1e6, SAC, "write replay.capacity=1000000"),
        ("buffer_size", 1e6, APPO, "leave it out: algo=appo has no replay.capacity"),
        ("nosuch", 1, SAC, None),
    ],
)
def test_what_is_said(name: str, value: object, info: AlgorithmInfo, said: str | None) -> None:
    assert advice(name, value, info) == said


def test_without_an_algorithm_every_key_counts() -> None:
    assert our_keys("lr", None) == ["algo.lr", "algo.actor_lr", "algo.critic_lr"]


def test_our_own_keys_and_those_of_the_environment_are_kept() -> None:
    problems: list[str] = []
    values = {"algo": {"lr": 1, "tau": 0.1}, "env": {"kwargs": {"task": "reach"}}, "gamma": 0.5, "nosuch": 2}
    kept = without_foreign(values, SAC, problems)
    assert kept == {"algo": {"lr": 1, "tau": 0.1}, "env": {"kwargs": {"task": "reach"}}, "nosuch": 2}
    assert problems == ["gamma: unknown key; write algo.gamma=0.5"]
