"""`offpolicy play RUN [--video FILE]`: a saved policy at work, in a window or as a video file."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray
from rich.console import Console

from offpolicy.collect.evaluation import Actor
from offpolicy.commands.saved_run import PolicyChoice, SavedRun
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.env_adapter import FAILURE_KEY, EnvAdapter, codec_of
from offpolicy.envs.make import Env, find_spec, make_env, with_time_limit
from offpolicy.envs.spaces import action_map
from offpolicy.envs.vector import env_seeds
from offpolicy.errors import ConfigError, EnvFailure, SaveError
from offpolicy.seeding import env_seed

DEFAULT_FPS = 30
Picture = NDArray[np.uint8]  # [height, width, 3]
NO_PICTURE: Picture = np.zeros((0, 0, 3), np.uint8)
FILE, WINDOW = "rgb_array", "human"  # Gymnasium's render modes
DRAWN_BY_PYGAME = ("gymnasium.envs.classic_control", "gymnasium.envs.toy_text", "gymnasium.envs.box2d")
WITH_FFMPEG = (".mp4", ".mkv", ".webm")


def play(path: Path, choice: PolicyChoice, *, video: Path | None, episodes: int) -> int:
    """Shows the policy, or writes the video, and prints its returns. Raises `ConfigError`, `EnvFailure`, `SaveError`.

    What is missing is said before the policy is loaded.
    """
    if video is None:
        check_display(path)
    else:
        check_video(video)
    if not has_display():
        os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo's own choice opens a window
    run = SavedRun.find(path, choice)
    check_drawing(run.env.id)
    seed = run.cfg.seed if choice.seed is None else choice.seed
    mode = FILE if video else WINDOW
    film = Film(run.actor(choice.device), run.env, episodes=episodes, seed=seed, mode=mode)
    doing = "filming" if video else "showing"
    with contextlib.closing(film), Console(stderr=True).status(f"{doing} {run.env.id}"):
        count = _write(film, video) if video else sum(1 for _ in film)
    returns = ", ".join(f"{value:,.1f}" for value in film.returns)
    Console(markup=False, highlight=False).print(
        f"{video or run.env.id}: {count} pictures, {count / film.fps:.1f} s; returns {returns}", soft_wrap=True
    )
    return 0


def has_display() -> bool:
    """True if a window can be opened."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def check_display(run: Path) -> None:
    """Raises `ConfigError` where no window can be opened."""
    if not has_display():
        raise ConfigError(
            f"--video: got none, and no window can be opened here; write offpolicy play {run} --video run.gif"
        )


def check_drawing(env_id: str) -> None:
    """Raises `ConfigError` where the package that draws one of Gymnasium's own environments is missing."""
    entry = str(find_spec(env_id).entry_point)
    if entry.startswith(DRAWN_BY_PYGAME) and importlib.util.find_spec("pygame") is None:
        raise ConfigError(
            f"env.id: {env_id} is drawn by pygame: pip install 'offpolicy[video]' (make play installs it)"
        )


def check_video(path: Path) -> None:
    """Raises `ConfigError`, before anything is made, if the file cannot be written."""
    kind, known = path.suffix.lower(), (".gif", *WITH_FFMPEG)
    if kind not in known:
        raise ConfigError(f"--video: got {str(path)!r}, allowed a file name that ends in {', '.join(known)}")
    if kind in WITH_FFMPEG and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise ConfigError(f"--video: {kind} needs imageio-ffmpeg: pip install 'offpolicy[video]', or write a .gif")
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigError(f"--video: got {str(path)!r}, allowed a file that can be written: {error.strerror}") from None
    if is_new:
        path.unlink()


def _write(film: Film, path: Path) -> int:
    """Writes the pictures into the file as they are made and returns how many."""
    import imageio.v2 as imageio

    is_gif = path.suffix.lower() == ".gif"
    timing: dict[str, Any] = {"duration": 1000.0 / film.fps, "loop": 0} if is_gif else {"fps": film.fps}
    count = 0
    try:
        writer: Any = imageio.get_writer(path, **timing)  # Any: imageio's type leaves append_data out
        with writer:
            for picture in film:
                writer.append_data(picture)
                count += 1
    except OSError as error:
        raise SaveError(f"{path}: {error.strerror or error}") from error
    return count


class Film:
    """The pictures of `episodes` episodes that begin like those of an evaluation, made while they are iterated."""

    def __init__(self, act: Actor, env: EnvConfig, *, episodes: int, seed: int, mode: str = FILE) -> None:  # noqa: PLR0913
        """Raises as `make_env`, and `ConfigError` where the environment draws no pictures, or none in a window."""
        limited = with_time_limit(env) if mode == FILE else env  # a window is closed by whoever looks at it
        self._cfg, self._mode = dataclasses.replace(limited, kwargs={**limited.kwargs, "render_mode": mode}), mode
        self._act, self._episodes, self._seed = act, episodes, seed
        with contextlib.closing(make_env(env)) as plain:
            modes = plain.metadata.get("render_modes", [])
        if mode not in modes:
            instead = "; write --video run.gif" if FILE in modes else ""
            raise ConfigError(f"env.id: {env.id} has the render modes {modes}, needed {mode}{instead}")
        self._env: Env = make_env(self._cfg)
        self.fps = int(self._env.metadata.get("render_fps", DEFAULT_FPS))
        self.returns: list[float] = []  # of the episodes that are over

    def __iter__(self) -> Iterator[Picture]:
        """Raises `EnvFailure` if the environment fails, in a step or in drawing."""
        codec = codec_of(self._env)
        adapter, actions = EnvAdapter(self._cfg, 0, 1, codec, self._env), action_map(codec)
        for seed in env_seeds(env_seed(self._seed, "evaluation"), self._episodes):
            obs, info = adapter.reset(seed=seed)
            _raise_failure(info)
            yield self._picture()
            total, is_over = 0.0, False
            while not is_over:
                obs, reward, terminated, truncated, info = adapter.step(actions.apply(self._act(obs[None]))[0])
                _raise_failure(info)
                total, is_over = total + reward, terminated or truncated
                yield self._picture()
            self.returns.append(total)

    def close(self) -> None:
        """Closes the environment."""
        with contextlib.suppress(Exception):  # its pictures are made
            self._env.close()

    def _picture(self) -> Picture:
        if self._mode == WINDOW:  # the environment draws by itself
            return NO_PICTURE
        try:
            picture: Any = self._env.render()
        except (ImportError, DependencyNotInstalled) as error:
            raise ConfigError(f"env.id: {self._cfg.id} cannot be drawn: {error}") from error
        except Exception as error:
            raise EnvFailure(f"{self._cfg.id} could not be drawn: {error!r}; MUJOCO_GL chooses the renderer") from error
        return np.asarray(picture, np.uint8)


def _raise_failure(info: dict[str, Any]) -> None:
    if FAILURE_KEY in info:
        raise EnvFailure(info[FAILURE_KEY])
