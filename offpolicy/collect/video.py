"""The pictures of whole episodes of a policy, for `offpolicy play`, and `eval.video`: a GIF of each evaluation.

A renderer may crash, hang or need a display, so a run draws in another process: whatever that does costs a warning
and the videos that would come, not the training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from offpolicy import fault
from offpolicy.algos.registry import make_policy
from offpolicy.checkpoint import Array
from offpolicy.collect.evaluation import Actor, deterministic_actor
from offpolicy.collect.policy import BadEpisodeError
from offpolicy.config.schema import RunConfig
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.env_adapter import EnvAdapter, codec_of, env_seeds
from offpolicy.envs.make import find_spec, make_env, with_time_limit
from offpolicy.errors import ConfigError, EnvFailure
from offpolicy.files import atomic_file, remove_temporaries
from offpolicy.output import drop_refused
from offpolicy.processes.child import die_with_parent
from offpolicy.processes.children import HELD_S, describe_exit, module_path, scratch_file
from offpolicy.processes.signals import leave_signals, signals_blocked
from offpolicy.seeding import env_seed
from offpolicy.timing.clock import Stopwatch
from offpolicy.types import SpaceSpec

VIDEOS = "videos"  # a run's directory of them
MOST_PICTURES = 600  # of one video: 20 s at 30 pictures per second
MOST_PIXELS = 320  # of a side; larger pictures are thinned out
FINISH_S = 20.0  # seconds that a run which has reached its end waits for its videos
MOST_S = 300.0  # seconds that one video may take
NICENESS = 10  # the run comes first
WORKER = "from offpolicy.collect.video import main; main()"
DEFAULT_FPS = 30
LEAST_DELAY_MS = 20  # of a picture of a GIF
LONGEST_GIF = 10_000  # pictures with their own delays; those after them have that of the last
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


class Film:
    """The pictures of `episodes` episodes that begin like those of an evaluation, made while they are iterated."""

    def __init__(self, act: Actor, env: EnvConfig, *, episodes: int, seed: int, mode: str = FILE) -> None:  # noqa: PLR0913
        """Raises as `make_env`, and `ConfigError` where the environment draws no pictures, or none in a window."""
        limited = with_time_limit(env) if mode == FILE else env  # a window is closed by its user
        self._cfg, self._mode = dataclasses.replace(limited, kwargs={**limited.kwargs, "render_mode": mode}), mode
        self._act, self._episodes, self._seed = act, episodes, seed
        with contextlib.closing(make_env(env)) as plain:
            modes = plain.metadata.get("render_modes", [])
        if mode not in modes:
            instead = "; write --video run.gif" if FILE in modes else ""
            raise ConfigError(f"env.id: {env.id} has the render modes {modes}, needed {mode}{instead}")
        self._env = make_env(self._cfg)
        fps = self._env.metadata.get("render_fps")
        self.fps = float(fps) if isinstance(fps, int | float | np.number) and 0.0 < fps < math.inf else DEFAULT_FPS
        self.returns: list[float] = []  # of the episodes that are over

    @property
    def spec(self) -> SpaceSpec:
        """The spaces of the environment. Raises `ConfigError` where they are not supported."""
        return codec_of(self._env, self._cfg.action_bounds).spec

    def __iter__(self) -> Iterator[Picture]:
        """Raises `EnvFailure` if the environment fails, in a step or in drawing, and `BadEpisodeError`."""
        adapter = EnvAdapter(self._cfg, codec_of(self._env, self._cfg.action_bounds), 1, first=self._env)
        for seed in env_seeds(env_seed(self._seed, "evaluation"), self._episodes):
            obs, total, num_steps = adapter.begin([seed], np.array([True])), 0.0, 0
            yield self._picture()
            while not adapter.was_done[0]:
                if not np.isfinite(obs).all():
                    raise BadEpisodeError.of("an observation", len(self.returns), num_steps)
                outcome = adapter.step(self._act(obs))
                obs, total, num_steps = outcome.next_obs, total + float(outcome.reward[0]), num_steps + 1
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
            got = f"render() returned a {type(picture).__name__}, allowed an array [height, width, 3]"
            raise EnvFailure(f"{self._cfg.id} could not be drawn: {got}")
        return picture.astype(np.uint8, copy=False)


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


class EvalVideo:
    """Starts a process per evaluation, one at a time; of those that come meanwhile the newest is filmed next."""

    def __init__(self, cfg: RunConfig, spec: SpaceSpec, run: Path, warn: Callable[[str], None]) -> None:
        """`warn` gets the first failure, after which nothing more is filmed. Create it on the main thread."""
        self._cfg, self._spec, self._warn = cfg, spec, warn
        self._directory, self._is_on = run / VIDEOS, cfg.eval.video
        self._process: subprocess.Popen[bytes] | None = None
        self._next: bytes | None = None  # the request that waits for the process
        self._watch = Stopwatch()

    def film(self, tensors: Mapping[str, Array], env_steps: int) -> None:
        """Begins the video of the policy with these tensors; returns at once."""
        if not self._is_on:
            return
        request = {
            "run": self._cfg.to_mapping(),
            "spec": dataclasses.asdict(self._spec),
            "file": str(self._directory / f"step-{env_steps:012d}.gif"),
            "sys_path": module_path(),
            "parent_pid": os.getpid(),
        }
        self._next = json.dumps(request).encode() + b"\n" + safetensors.numpy.save(dict(tensors))
        self._poll()

    def finish(self) -> None:
        """Gives the videos that are still to be made `FINISH_S`: the last evaluation's is wanted most."""
        watch = Stopwatch()
        self._poll()
        while self._process is not None and (left_s := FINISH_S - watch.elapsed_s()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(left_s)
            self._poll()

    def close(self) -> None:
        """Ends the video that is being made; a second call does nothing."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it
                self._process.wait(HELD_S)
            self._process = None
            remove_temporaries(self._directory)

    def _poll(self) -> None:
        """Takes note of a process that has ended, ends one that takes too long, and starts the next one."""
        if self._process is not None:
            code = self._process.poll()
            if code is None and self._watch.elapsed_s() <= MOST_S:
                return
            self.close()
            if code != 0:
                how = f"took longer than {MOST_S:g} s" if code is None else describe_exit(code)
                self._give_up(f"its process {how}; see train.log")
        if self._is_on and self._next is not None:
            request, self._next, self._watch = self._next, None, Stopwatch()
            try:
                fault.hit("video.spawn")
                with scratch_file() as file, signals_blocked():
                    file.write(request)
                    file.seek(0)
                    # What the renderer prints goes to train.log.
                    self._process = subprocess.Popen([sys.executable, "-P", "-c", WORKER], stdin=file, stdout=2)
            except OSError as error:
                self._give_up(f"its process could not be started: {error}")

    def _give_up(self, why: str) -> None:
        self._is_on = False
        self._warn(f"eval.video: no video, {why}. No more evaluations are filmed")


def main() -> None:
    """Runs in the process of one video; its request comes from stdin."""
    request: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    drop_refused("stdout", "stderr")
    leave_signals()
    die_with_parent(request["parent_pid"])
    os.nice(NICENESS)
    sys.path += [entry for entry in request["sys_path"] if entry not in sys.path]
    draw_without_window()
    torch.set_num_threads(1)
    cfg = RunConfig.from_mapping(request["run"])
    policy = make_policy(cfg.algo, SpaceSpec.from_json(request["spec"])).eval()
    tensors = safetensors.torch.load(sys.stdin.buffer.read())
    policy.load_state_dict({name.removeprefix("policy."): tensor for name, tensor in tensors.items()})
    path = Path(request["file"])
    with contextlib.closing(Film(deterministic_actor(policy), cfg.env, episodes=1, seed=cfg.seed)) as film:
        save_video(film, film.fps, path)
    make_room(path.parent, cfg.eval.video_mb * 1_000_000)


def save_video(pictures: Iterable[Picture], fps: float, path: Path) -> None:
    """Writes the first `MOST_PICTURES` of the pictures, thinned out to `MOST_PIXELS` a side. Raises OSError."""
    import imageio.v2 as imageio

    fault.hit("video.mkdir")
    path.parent.mkdir(exist_ok=True)
    with atomic_file(path, durable=False) as file:
        # Any: imageio's types leave `append_data` and names of formats out
        get_writer: Any = imageio.get_writer
        timing = GifTiming.of(fps)
        with get_writer(file, format="GIF", duration=timing.delays_ms, loop=0) as writer:
            for picture in islice(pictures, 0, MOST_PICTURES * timing.stride, timing.stride):
                step = -(-max(picture.shape[:2]) // MOST_PIXELS)
                writer.append_data(picture[::step, ::step])


def make_room(directory: Path, most_bytes: int) -> None:
    """Removes the oldest videos until the rest have at most so many bytes. Raises OSError."""
    total = 0
    for video in sorted(directory.glob("step-*"), reverse=True):
        total += video.stat().st_size
        if total > most_bytes:
            fault.hit("video.remove")
            video.unlink()
