"""`offpolicy play RUN` shows or films a saved policy; `offpolicy record RUN` writes its steps as demonstrations."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from offpolicy.commands.options import PolicyChoice, add_policy_options, add_run, at_least
from offpolicy.config.algorithms import FROM_REPLAY
from offpolicy.errors import EXIT_OK, ConfigError, SaveError
from offpolicy.files import output_path
from offpolicy.logger.console import plain_console, shown_path
from offpolicy.output import counted, return_text
from offpolicy.replay.demonstrations import to_env
from offpolicy.runs import check_output
from offpolicy.types import SpaceSpec

if TYPE_CHECKING:
    from offpolicy.collect.evaluation import Episode
    from offpolicy.collect.video import Picture

WITH_FFMPEG = (".mp4", ".mkv", ".webm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run and the video."""
    add_run(parser)
    parser.add_argument("--video", type=Path, help="file to write: .gif, or .mp4 (default: a window, with a display)")
    parser.add_argument("--episodes", type=at_least(1), default=1, help="complete episodes (default: 1)")
    add_policy_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Shows the policy, or films it, and prints its returns. Raises `ConfigError`, `EnvFailure` or `SaveError`."""
    video = arguments.video
    if video is not None:
        check_output("--video", video, ".gif", *WITH_FFMPEG)
        if video.suffix.lower() in WITH_FFMPEG and importlib.util.find_spec("imageio_ffmpeg") is None:
            raise ConfigError("--video: needs imageio-ffmpeg: pip install 'offpolicy[video]', or write a .gif")
    from offpolicy.collect.evaluation import EpisodeCallbacks, run_episodes
    from offpolicy.collect.video import FILE, WINDOW, Film, check_drawing, draw_without_window, has_display
    from offpolicy.commands.saved_run import SavedRun
    from offpolicy.envs.vectorization import has_single

    draw_without_window()
    saved = SavedRun.find(arguments.run, PolicyChoice.of(arguments))
    if not has_single(saved.env):
        if video:
            raise ConfigError(f"--video: got {video}, allowed none: {saved.env.name} is a batch, which draws nothing")
        callbacks = EpisodeCallbacks(on_spaces=saved.require_spaces)
        found = run_episodes(
            saved.actor(), saved.env, episodes=arguments.episodes, seed=saved.seed, callbacks=callbacks
        )
        _print(f"{saved.env.name}: a batch, which draws nothing", found.ep_return)
        return EXIT_OK
    check_drawing(saved.env.id)
    if video is None and not has_display():
        instead = f"offpolicy play {shown_path(arguments.run)} --video run.gif"
        raise ConfigError(f"--video: got none, and no window can be opened here; write {instead}")
    mode = FILE if video else WINDOW
    film = Film(saved.actor(), saved.env, episodes=arguments.episodes, seed=saved.seed, mode=mode)
    with contextlib.closing(film), Console(stderr=True).status(Text(f"playing {saved.env.id}")):
        saved.require_spaces(film.spec)
        count = write_video(film, film.fps, video) if video else sum(1 for _ in film)
    _print(f"{video or saved.env.id}: {counted(count, 'picture')}, {count / film.fps:.1f} s", film.returns)
    return EXIT_OK


def _print(what: str, returns: Iterable[float]) -> None:
    text = ", ".join(return_text(value, ",") for value in returns)
    plain_console().print(f"{what}; returns {text}", soft_wrap=True)


def write_video(pictures: Iterable[Picture], fps: float, path: Path) -> int:
    """Writes pictures, of a GIF some, as they are made; returns how many there were. Raises `SaveError`."""
    import imageio.v2 as imageio

    from offpolicy.collect.video import GifTiming

    is_gif, gif = path.suffix.lower() == ".gif", GifTiming.of(fps)
    timing: dict[str, Any] = {"duration": gif.delays_ms, "loop": 0} if is_gif else {"fps": fps}
    count = 0
    with _saved(path) as new, contextlib.closing(imageio.get_writer(new, **timing)) as writer:
        for picture in pictures:
            if not is_gif or count % gif.stride == 0:
                writer.append_data(picture)
            count += 1
    return count


def add_record(parser: argparse.ArgumentParser) -> None:
    """Adds the run and the file of `record`."""
    add_run(parser)
    parser.add_argument("--out", type=Path, required=True, help="file to write: .npz, for replay.demos")
    parser.add_argument("--episodes", type=at_least(1), default=10, help="complete episodes (default: 10)")
    add_policy_options(parser)
    parser.set_defaults(run_command=run_record)


def run_record(arguments: argparse.Namespace) -> int:
    """Writes the transitions of the policy without noise. Raises `ConfigError`, `EnvFailure` or `SaveError`."""
    check_output("--out", arguments.out, ".npz", is_new=True)
    from offpolicy.collect.evaluation import Episode, EpisodeCallbacks, run_episodes
    from offpolicy.commands.saved_run import SavedRun

    saved, episodes = SavedRun.find(arguments.run, PolicyChoice.of(arguments)), list[Episode]()
    space, learners = saved.spec.action_space, ", ".join(info.name for info in FROM_REPLAY)
    if not any(space in info.action_spaces for info in FROM_REPLAY):
        raise ConfigError(
            f"run: {saved.path} has {space} actions; {learners}, which learn from files, do not take them"
        )
    callbacks = EpisodeCallbacks(on_spaces=saved.require_spaces, on_end=episodes.append, keeps_steps=True)
    found = run_episodes(saved.actor(), saved.env, episodes=arguments.episodes, seed=saved.seed, callbacks=callbacks)
    count = save_demos(arguments.out, episodes, saved.spec)
    size = f"{counted(count, 'transition')} of {counted(len(episodes), 'episode')}"
    mean = return_text(float(found.ep_return.mean()), ",")
    plain_console().print(f"{arguments.out}: {size}, mean return {mean}", soft_wrap=True)
    return EXIT_OK


def save_demos(path: Path, episodes: Iterable[Episode], spec: SpaceSpec) -> int:
    """Writes an `.npz` of demonstrations, episodes in their order; returns the transitions. Raises `SaveError`."""
    columns: list[dict[str, NDArray[Any]]] = []  # Any: floats, integers and booleans
    for episode in sorted(episodes, key=lambda one: one.index):
        is_last = np.arange(episode.length) == episode.length - 1
        columns.append(
            {
                "obs": episode.obs[:-1],
                "action": to_env(episode.action, spec),
                "reward": episode.reward,
                "next_obs": episode.obs[1:],
                "terminated": is_last & episode.terminated,
                "truncated": is_last & episode.truncated,
                "episode": np.full(episode.length, episode.index, np.int64),
            }
        )
    arrays = {name: np.concatenate([one[name] for one in columns]) for name in columns[0]}
    with _saved(path) as new:
        np.savez_compressed(new, allow_pickle=False, **arrays)
    return len(arrays["episode"])


@contextlib.contextmanager
def _saved(path: Path) -> Iterator[Path]:
    try:
        with output_path(path) as new:
            yield new
    except OSError as error:
        raise SaveError(f"{path}: {error.strerror or error}") from error
