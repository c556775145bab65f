"""A picture per step of whole episodes; environments that are refused."""

from __future__ import annotations

import contextlib
import importlib.util
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from offpolicy.collect.film import DEFAULT_FPS, WINDOW, Film, check_drawing
from offpolicy.collect.policy import BadEpisodeError
from offpolicy.config.sections import EnvConfig
from offpolicy.errors import ConfigError, EnvFailure


class Painted(gymnasium.Env[Any, Any]):
    """Three steps an episode, each rewarded with 2; a picture whose colour is the step."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # Gymnasium's own name
    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Box(-5.0, 5.0, (1,), np.float32)

    def __init__(self, render_mode: str | None = None, is_broken: bool = False) -> None:
        self.render_mode, self.is_broken = render_mode, is_broken
        self.time, self.seen = 0, list[float]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return np.array([action[0] / 5.0], np.float32), 2.0, self.time == 3, False, {}

    def render(self) -> Any:
        if self.is_broken:
            raise RuntimeError("no display")
        return np.full((4, 6, 3), self.time, np.uint8)


gymnasium.register("PaintedForFilm-v0", entry_point=Painted)


def film(episodes: int = 1, **kwargs: Any) -> Film:
    cfg = EnvConfig(id="PaintedForFilm-v0", kwargs=kwargs)
    return Film(lambda obs: np.ones((1, 1), np.float32), cfg, episodes=episodes, seed=1)


def test_a_film_has_the_first_picture_and_one_of_every_step_of_whole_episodes() -> None:
    made = film(episodes=2)
    assert [int(picture[0, 0, 0]) for picture in made] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert made.returns == [6.0, 6.0]
    assert made.fps == DEFAULT_FPS
    made.close()


def test_no_policy_acts_on_nan() -> None:
    acted: list[float] = []

    def act(obs: Any) -> Any:
        acted.append(float(obs[0, 0]))
        return np.full((1, 1), np.nan if acted[1:] else 0.5, np.float32)

    film = Film(act, EnvConfig(id="PaintedForFilm-v0"), episodes=1, seed=1)
    text = "an observation of the environment: episode 0 .*, after 2 steps"
    with contextlib.closing(film), pytest.raises(BadEpisodeError, match=text):
        list(film)
    assert acted == [0.0, 0.5]


def test_an_environment_that_draws_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"has the render modes \[\], needed rgb_array$"):
        Film(lambda obs: obs, EnvConfig(id="tests.toys:Counter-v0"), episodes=1, seed=1)


def test_a_picture_that_cannot_be_drawn_is_the_environments_failure() -> None:
    with pytest.raises(EnvFailure, match=r"could not be drawn: RuntimeError\('no display'\); MUJOCO_GL chooses"):
        list(film(is_broken=True))


def test_an_environment_without_a_window_names_the_file() -> None:
    with pytest.raises(ConfigError, match="needed human; write --video run.gif"):
        Film(lambda obs: obs, EnvConfig(id="PaintedForFilm-v0"), episodes=1, seed=1, mode=WINDOW)


@pytest.mark.parametrize(("env_id", "is_refused"), [("Pendulum-v1", True), ("HalfCheetah-v5", False)])
def test_a_missing_pygame_is_said_before_the_policy_is_loaded(
    monkeypatch: pytest.MonkeyPatch, env_id: str, is_refused: bool
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    if is_refused:
        with pytest.raises(ConfigError, match=r"drawn by pygame: pip install 'offpolicy\[video\]'"):
            check_drawing(env_id)
    else:
        check_drawing(env_id)
