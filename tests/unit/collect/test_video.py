"""Pictures of whole episodes, environments that are refused, and videos of evaluations that never end a run."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from offpolicy.collect import video
from offpolicy.collect.policy import BadEpisodeError
from offpolicy.collect.video import DEFAULT_FPS, EvalVideo, Film, check_drawing, make_room, save_video
from offpolicy.config.schema import RunConfig
from offpolicy.config.sections import EnvConfig
from offpolicy.errors import ConfigError, EnvFailure
from offpolicy.types import SpaceSpec


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


SPEC = SpaceSpec(4, 2, (-1.0,) * 2, (1.0,) * 2)
FAIL = "raise SystemExit(3)"


def pictures(count: int, side: int = 8) -> Iterator[Any]:
    for index in range(count):
        picture = np.full((side, side // 2, 3), 250, np.uint8)
        picture[index % side] = index % 200
        yield picture


@pytest.mark.parametrize("fps", [10, 67, 125])
def test_a_gif_plays_in_real_time(tmp_path: Path, fps: int) -> None:
    save_video(pictures(200), fps, tmp_path / "a.gif")
    delays_ms = []
    with Image.open(tmp_path / "a.gif") as gif:
        for number in range(gif.n_frames):
            gif.seek(number)
            delays_ms.append(gif.info["duration"])
    assert min(delays_ms) >= 20, "viewers show a shorter one for 100 ms"
    assert sum(delays_ms) == pytest.approx(200 / fps * 1000, abs=2 * max(delays_ms))


def test_the_oldest_videos_make_room(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        (tmp_path / f"step-{step:012d}.gif").write_bytes(b"x" * 10)
    make_room(tmp_path, 25)
    assert sorted(path.name[-5:] for path in tmp_path.iterdir()) == ["2.gif", "3.gif"]


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def make_video(tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`make_video(code)`: videos that are made by a process which runs `code`."""

    def make(code: str) -> EvalVideo:
        monkeypatch.setattr(video, "WORKER", code)
        cfg = RunConfig.from_mapping({"eval": {"video": True}})
        return EvalVideo(cfg, SPEC, tmp_path, warnings.append)

    return make


def request(videos: EvalVideo, *steps: int) -> None:
    for env_steps in steps:
        videos.film({"policy.x": np.zeros(2, np.float32)}, env_steps)


@pytest.mark.mp
def test_a_process_that_fails_is_warned_of_once_and_no_other_is_started(make_video: Any, warnings: list[str]) -> None:
    made = make_video(FAIL)
    request(made, 100)
    made.finish()
    request(made, 200, 300)
    made.close()
    assert warnings == [
        "eval.video: no video, its process exited with code 3; see train.log. No more evaluations are filmed"
    ]


@pytest.mark.mp
@pytest.mark.parametrize(("then", "ending"), [("time.sleep(60)", EvalVideo.close), ("os._exit(3)", EvalVideo.finish)])
def test_the_end_of_a_run_kills_the_process_and_no_part_of_a_video_is_left(
    make_video: Any, tmp_path: Path, then: str, ending: Callable[[EvalVideo], None]
) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    part = f"pathlib.Path('{videos}', f'.step-000000000100.gif.{{os.getpid()}}.tmp').touch()"
    made = make_video(f"import os, pathlib, time; {part}; {then}")
    request(made, 100)
    while not list(videos.iterdir()):
        time.sleep(0.02)
    (path,) = videos.iterdir()
    ending(made)
    made.close()
    assert list(videos.iterdir()) == []
    assert not Path(f"/proc/{path.name.split('.')[-2]}").exists()
