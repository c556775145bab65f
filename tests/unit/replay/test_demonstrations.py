"""Demonstrations from a file: units, episodes, and everything that can be wrong with them, said by name."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.errors import ConfigError
from offpolicy.replay.demonstrations import Transitions, from_env, read_demos, to_env
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(obs_dim=2, action_dim=2, action_low=(-2.0, 0.0), action_high=(2.0, 1.0))


def arrays(count: int = 4, **changes: Any) -> dict[str, Any]:
    """Transitions whose observations encode their row; the second and the last end an episode."""
    obs = np.arange(count, dtype=np.float64)[:, None].repeat(2, axis=1)
    given = {
        "obs": obs, "action": np.tile([0.0, 0.5], (count, 1)), "reward": np.arange(count, dtype=np.float64),
        "next_obs": obs + 1, "terminated": np.arange(count) == 1, "truncated": np.arange(count) == count - 1,
    }  # fmt: skip
    return {name: value for name, value in (given | changes).items() if value is not None}


def saved(path: Path, given: dict[str, Any]) -> str:
    np.savez(path / "demos.npz", **given)
    return str(path / "demos.npz")


def read(path: Path, **changes: Any) -> Transitions:
    return read_demos(saved(path, arrays(**changes)), SPEC)


def test_discrete_actions_come_by_the_numbers_of_their_space_and_leave_counted_from_zero() -> None:
    spec = SpaceSpec(obs_dim=2, action_dim=2, action_low=(5.0, -1.0), action_high=(7.0, 0.0), nvec=(3, 2))
    action = np.array([[0.0, 1.0], [2.0, 0.0]], np.float32)
    assert to_env(action, spec).tolist() == [[5.0, 0.0], [7.0, -1.0]]
    assert from_env(np.array([[5.0, 0.0], [7.0, -1.0]]), spec).tolist() == action.tolist()


def test_actions_come_in_the_environments_units_and_leave_in_minus_one_to_one(tmp_path: Path) -> None:
    action = np.array([[-2.0, 0.0], [2.0, 1.0], [0.0, 0.5], [1.0, 0.25]])
    found = read(tmp_path, action=action)
    assert found.action.tolist() == [[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [0.5, -0.5]]
    assert found.action.dtype == np.float32
    assert to_env(found.action, SPEC).tolist() == action.tolist()


def test_an_episode_ends_where_its_flags_say_so(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert (found.first.tolist(), found.length.tolist()) == ([0, 2], [2, 2])
    assert found.ep_return.tolist() == [1.0, 5.0]


def test_episodes_are_put_one_after_another_and_truncated_where_their_data_end(tmp_path: Path) -> None:
    never = np.zeros(4, np.bool_)
    found = read(tmp_path, terminated=never, truncated=never, episode=np.array([7, 2, 7, 2]))
    assert found.reward.tolist() == [1.0, 3.0, 0.0, 2.0]
    assert found.first.tolist() == [0, 2]
    assert (found.truncated.tolist(), found.terminated.any()) == ([False, True, False, True], False)


NAN = np.array([0.0, np.nan, 1.0, np.inf])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"reward": NAN}, "reward is NaN or Inf in 2 rows, first in row 1"),
        ({"obs": np.full((4, 2), 1e300)}, "obs is NaN or Inf in 4 rows, first in row 0"),
        ({"obs": np.zeros((4, 3))}, "obs has shape (4, 3) and type float64, needed (4, 2) of numbers"),
        ({"next_obs": np.zeros((3, 2))}, "next_obs has shape (3, 2) and type float64, needed (4, 2) of numbers"),
        ({"action": np.full((4, 2), "a")}, "action has shape (4, 2) and type <U1, needed (4, 2) of numbers"),
        ({"terminated": np.full(4, 2)}, "terminated holds other values than true and false"),
        ({"episode": np.zeros(3)}, "episode has shape (3,) and type float64, needed (4,) of numbers"),
        (
            {"action": np.array([[0, 0.5], [2.5, 0.5], [0, 0.5], [0, -1]])},
            "2 actions beyond the environment's bounds, first in row 1: [2.5, 0.5], allowed [-2.0, 0.0] to"
            " [2.0, 1.0], its own units",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_the_problem(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, **changes)
    assert [text.split(": ", 2)[2] for text in caught.value.problems] == [problem]
    assert caught.value.problems[0].startswith(f"replay.demos: {tmp_path}")


def test_discrete_actions_between_two_numbers_are_refused(tmp_path: Path) -> None:
    """They were rounded: probabilities, or actions of another scale, became a choice."""
    spec = SpaceSpec(obs_dim=2, action_dim=1, action_low=(0.0,), action_high=(29_999.0,), num_actions=30_000)
    with pytest.raises(ConfigError) as caught:
        read_demos(saved(tmp_path, arrays(action=np.array([[2.0], [0.5], [1.25], [np.nan]]))), spec)
    assert [text.split(": ", 2)[2] for text in caught.value.problems] == [
        "action is NaN or Inf in 1 row, first in row 3",
        "2 actions of no whole numbers, first in row 1: [0.5], allowed the numbers of the environment's actions",
    ]
    with pytest.raises(ConfigError, match=r"1 action beyond .* bounds, first in row 0: \[30001\.0\]"):
        read_demos(saved(tmp_path, arrays(action=np.array([[30_001.0], [0.0], [0.0], [0.0]]))), spec)


def test_a_file_of_something_else_is_refused_and_code_in_it_is_never_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no reward, truncated; it has obs, action, next_obs, terminated"):
        read(tmp_path, reward=None, truncated=None)
    with pytest.raises(ConfigError, match="holds no transition"):
        read_demos(saved(tmp_path, {name: values[:0] for name, values in arrays().items()}), SPEC)
    with pytest.raises(ConfigError, match="no .npz of plain numbers"):
        read_demos(saved(tmp_path, arrays(episode=np.array([{}, {}, {}, {}], dtype=object))), SPEC)
    for content in (b"", b"no numbers", b"PK\x03\x04 cut short"):
        (tmp_path / "demos.npz").write_bytes(content)
        with pytest.raises(ConfigError, match=r"replay\.demos"):
            read_demos(str(tmp_path / "demos.npz"), SPEC)
    with pytest.raises(ConfigError, match=r"got 'nowhere\.npz', which cannot be read: No such file"):
        read_demos("nowhere.npz", SPEC)


def test_rows_that_do_not_follow_each_other_cannot_be_summed(tmp_path: Path) -> None:
    read(tmp_path).require_sequences()
    shuffled = read(tmp_path, next_obs=np.zeros((4, 2)))
    with pytest.raises(ConfigError, match=r"row 1 does not begin where the row before it.*algo\.n_step"):
        shuffled.require_sequences()


REACH = SpaceSpec(2, 1, (-2.0,), (2.0,))


DICT = SpaceSpec(3, 1, (-2.0,), (2.0,), obs_keys=("arm/angle", "goal"), obs_shapes=((1,), (2,)))


def episode(length: int, start: float, observations: Any = None) -> SimpleNamespace:
    """As `minari.EpisodeData`: one observation more than actions."""
    obs = start + np.arange(length + 1)[:, None].repeat(2, axis=1)
    return SimpleNamespace(
        observations=obs if observations is None else observations, actions=np.full((length, 1), 1.0),
        rewards=np.ones(length), terminations=np.zeros(length, np.bool_),
        truncations=np.arange(length) == length - 1,
    )  # fmt: skip


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A stand-in for Minari, with two episodes of two and three steps; what was opened."""
    asked: list[Any] = []
    episodes = [episode(2, 0.0), episode(3, 10.0)]
    data = SimpleNamespace(iterate_episodes=lambda: iter(episodes), episodes=episodes)

    def load(name: Any) -> Any:
        asked.append(name)
        if name == "no/such-v0":
            raise FileNotFoundError("Dataset no/such-v0 not found locally")
        return data

    module = ModuleType("minari")
    module.load_dataset = module.MinariDataset = load  # type: ignore[attr-defined]
    module.episodes = episodes  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "minari", module)
    return asked


def test_observations_are_paired_with_those_that_follow(opened: list[Any]) -> None:
    found = read_demos("minari:reach/expert-v1", REACH)
    assert opened == ["reach/expert-v1"]
    assert found.obs[:, 0].tolist() == [0.0, 1.0, 10.0, 11.0, 12.0]
    assert found.next_obs[:, 0].tolist() == [1.0, 2.0, 11.0, 12.0, 13.0]
    assert found.action[:, 0].tolist() == [0.5] * 5
    assert (found.first.tolist(), found.truncated.sum()) == ([0, 2], 2)


def test_parts_of_a_dict_observation_are_joined_in_the_order_of_the_environment(opened: list[Any]) -> None:
    parts = {"goal": np.full((3, 2), 7.0), "arm": {"angle": np.arange(3.0)[:, None]}}
    sys.modules["minari"].episodes[:] = [episode(2, 0.0, parts)]
    assert read_demos("minari:arm", DICT).obs.tolist() == [[0.0, 7.0, 7.0], [1.0, 7.0, 7.0]]


def test_a_data_set_that_cannot_be_had_is_a_mistake_of_the_configuration(
    opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"replay\.demos: minari:no/such-v0 cannot be read by Minari: Dataset"):
        read_demos("minari:no/such-v0", REACH)
    assert opened
    sys.modules["minari"].episodes.clear()
    with pytest.raises(ConfigError, match="holds no episode"):
        read_demos("minari:empty", REACH)
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ConfigError, match=r"needs Minari: pip install 'offpolicy\[minari\]'"):
        read_demos("minari:reach/expert-v1", REACH)
