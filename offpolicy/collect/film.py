"""The pictures of whole episodes of a policy, for `offpolicy play` and for the videos of evaluations."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from offpolicy.collect.evaluation import Actor
from offpolicy.collect.policy import BadEpisodeError
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.env_adapter import FAILURE_KEY, EnvAdapter, codec_of
from offpolicy.envs.make import Env, find_spec, make_env, with_time_limit
from offpolicy.envs.spaces import action_map
from offpolicy.envs.vector import env_seeds
from offpolicy.errors import ConfigError, EnvFailure
from offpolicy.seeding import env_seed
from offpolicy.types import SpaceSpec

DEFAULT_FPS = 30
LEAST_DELAY_MS = 20  # of a picture of a GIF
LONGEST_GIF = 10_000  # pictures with delays of their own; those after them have that of the last
Picture = NDArray[np.uint8]  # [height, width, 3]
NO_PICTURE: Picture = np.zeros((0, 0, 3), np.uint8)
FILE, WINDOW = "rgb_array", "human"  # Gymnasium's render modes
DRAWN_BY_PYGAME = ("gymnasium.envs.classic_control", "gymnasium.envs.toy_text", "gymnasium.envs.box2d")


def has_display() -> bool:
    """True if a window can be opened."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def draw_without_window() -> None:
    """Chooses MuJoCo's renderer that needs no window, where none can be opened; its own choice opens one."""
    if not has_display():
        os.environ.setdefault("MUJOCO_GL", "egl")


def check_drawing(env_id: str) -> None:
    """Raises `ConfigError` where the package that draws one of Gymnasium's own environments is missing."""
    entry = str(find_spec(env_id).entry_point)
    if entry.startswith(DRAWN_BY_PYGAME) and importlib.util.find_spec("pygame") is None:
        raise ConfigError(
            f"env.id: {env_id} is drawn by pygame: pip install 'offpolicy[video]' (make play installs it)"
        )


def fps_of(env: Env) -> float:
    """Returns the pictures per second that an environment declares, `DEFAULT_FPS` where that is no positive number."""
    fps = env.metadata.get("render_fps")
    return float(fps) if isinstance(fps, int | float | np.number) and 0.0 < fps < math.inf else DEFAULT_FPS


class GifTiming(NamedTuple):
    """The pictures that a GIF holds and for how long each is shown, so that it plays in real time.

    A GIF counts hundredths of a second, and viewers show less than two of them as ten: every `stride`-th picture is
    kept. `delays_ms` [LONGEST_GIF] are whole hundredths, the rounding of each being made up for by the next.
    """

    stride: int
    delays_ms: list[int]

    @classmethod
    def of(cls, fps: float) -> GifTiming:
        """Returns the timing of pictures that are made at `fps`."""
        stride = math.ceil(fps * LEAST_DELAY_MS / 1000)
        shown_at = [10 * int(100 * stride * number // fps) for number in range(LONGEST_GIF + 1)]
        return cls(stride, [end - begin for begin, end in pairwise(shown_at)])


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
        self.fps = fps_of(self._env)
        self.returns: list[float] = []  # of the episodes that are over

    @property
    def spec(self) -> SpaceSpec:
        """The spaces of the environment. Raises `ConfigError` where they are not supported."""
        return codec_of(self._env).spec

    def __iter__(self) -> Iterator[Picture]:
        """Raises `EnvFailure` if the environment fails, in a step or in drawing, and `BadEpisodeError`."""
        codec = codec_of(self._env)
        adapter, actions = EnvAdapter(self._cfg, 0, 1, codec, self._env), action_map(codec)
        for seed in env_seeds(env_seed(self._seed, "evaluation"), self._episodes):
            obs, info = adapter.reset(seed=seed)
            _raise_failure(info)
            yield self._picture()
            total, is_over, num_steps = 0.0, False, 0
            while not is_over:
                if not np.isfinite(obs).all():
                    raise BadEpisodeError.of("an observation", len(self.returns), num_steps)
                obs, reward, terminated, truncated, info = adapter.step(actions.apply(self._act(obs[None]))[0])
                _raise_failure(info)
                total, is_over, num_steps = total + reward, terminated or truncated, num_steps + 1
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
        if not isinstance(picture, np.ndarray) or picture.ndim not in (2, 3):
            shape = f" of shape {picture.shape}" if isinstance(picture, np.ndarray) else ""
            got = f"render() returned a {type(picture).__name__}{shape}, allowed an array [height, width, 3]"
            raise EnvFailure(f"{self._cfg.id} could not be drawn: {got}")
        return picture.astype(np.uint8, copy=False)


def _raise_failure(info: dict[str, Any]) -> None:
    if FAILURE_KEY in info:
        raise EnvFailure(info[FAILURE_KEY])
