"""A Minari data set as demonstrations; Minari is optional, so what it gives is played here by its own names."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.errors import ConfigError
from offpolicy.replay.demonstrations import read_demos
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(2, 1, (-2.0,), (2.0,))
DICT = SpaceSpec(3, 1, (-2.0,), (2.0,), obs_keys=("arm/angle", "goal"), obs_shapes=((1,), (2,)))


def episode(length: int, start: float, observations: Any = None) -> SimpleNamespace:
    """As `minari.EpisodeData`: one observation more than actions."""
    obs = start + np.arange(length + 1)[:, None].repeat(2, axis=1)
    return SimpleNamespace(
        observations=obs if observations is None else observations,
        actions=np.full((length, 1), 1.0),
        rewards=np.ones(length),
        terminations=np.zeros(length, np.bool_),
        truncations=np.arange(length) == length - 1,
    )


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A stand-in for Minari, with two episodes of two and three steps; what was opened."""
    asked: list[Any] = []
    episodes = [episode(2, 0.0), episode(3, 10.0)]
    data = SimpleNamespace(iterate_episodes=lambda: iter(episodes), episodes=episodes)

    def load(name: Any) -> Any:
        asked.append(name)
        if name == "nobody/knows-v0":
            raise FileNotFoundError("Dataset nobody/knows-v0 not found locally")
        return data

    module = ModuleType("minari")
    module.load_dataset = module.MinariDataset = load  # type: ignore[attr-defined]
    module.episodes = episodes  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "minari", module)
    return asked


def test_observations_are_paired_with_those_that_follow(opened: list[Any]) -> None:
    found = read_demos("minari:reach/expert-v1", SPEC)
    assert opened == ["reach/expert-v1"]
    assert found.obs[:, 0].tolist() == [0.0, 1.0, 10.0, 11.0, 12.0]
    assert found.next_obs[:, 0].tolist() == [1.0, 2.0, 11.0, 12.0, 13.0]
    assert found.action[:, 0].tolist() == [0.5] * 5
    assert (found.first.tolist(), found.truncated.sum()) == ([0, 2], 2)


def test_a_directory_of_a_data_set_is_opened_as_one(opened: list[Any], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert len(read_demos(str(tmp_path), SPEC)) == 5
    assert opened == [tmp_path / "data"]


def test_parts_of_a_dict_observation_are_joined_in_the_order_of_the_environment(opened: list[Any]) -> None:
    parts = {"goal": np.full((3, 2), 7.0), "arm": {"angle": np.arange(3.0)[:, None]}}
    sys.modules["minari"].episodes[:] = [episode(2, 0.0, parts)]
    assert read_demos("minari:arm", DICT).obs.tolist() == [[0.0, 7.0, 7.0], [1.0, 7.0, 7.0]]


def test_what_minari_cannot_open_is_a_mistake_of_the_configuration(opened: list[Any]) -> None:
    with pytest.raises(ConfigError, match=r"replay\.demos: minari:nobody/knows-v0 cannot be read by Minari: Dataset"):
        read_demos("minari:nobody/knows-v0", SPEC)
    assert opened


def test_a_data_set_without_episodes_is_refused(opened: list[Any]) -> None:
    sys.modules["minari"].episodes.clear()
    with pytest.raises(ConfigError, match="holds no episode"):
        read_demos("minari:empty", SPEC)
    assert opened


def test_where_minari_is_not_installed_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ConfigError, match=r"needs Minari: pip install 'offpolicy\[minari\]'"):
        read_demos("minari:reach/expert-v1", SPEC)
