"""`offpolicy play RUN`: a saved policy in a window, or on a film that ends with whole episodes."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from offpolicy.commands.options import add_policy_options, add_run, positive
from offpolicy.commands.trust import check_trust
from offpolicy.errors import ConfigError, SaveError
from offpolicy.files import output_path
from offpolicy.logger.console import plain_console, shown_path
from offpolicy.output import counted, return_text
from offpolicy.runs import check_output

if TYPE_CHECKING:
    from offpolicy.collect.video import Picture
    from offpolicy.commands.saved_run import PolicyChoice

WITH_FFMPEG = (".mp4", ".mkv", ".webm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run and the video."""
    add_run(parser)
    parser.add_argument(
        "--video", type=Path, help="file to write: .gif, or .mp4; without it, a window where there is a display"
    )
    parser.add_argument("--episodes", type=positive, default=1, help="complete episodes (default: 1)")
    add_policy_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Plays the policy."""
    check_trust(arguments.run, is_trusted=arguments.trust)
    from offpolicy.commands.saved_run import PolicyChoice  # imports torch

    return play(arguments.run, PolicyChoice.of(arguments), video=arguments.video, episodes=arguments.episodes)


def play(path: Path, choice: PolicyChoice, *, video: Path | None, episodes: int) -> int:
    """Shows the policy, or writes the video, and prints its returns. Raises `ConfigError`, `EnvFailure`, `SaveError`.

    What is missing is said before the policy is loaded.
    """
    from offpolicy.collect.video import FILE, WINDOW, Film, check_drawing, draw_without_window, has_display
    from offpolicy.commands.saved_run import SavedRun

    if video is not None:
        check_output("--video", video, ".gif", *WITH_FFMPEG)
        if video.suffix.lower() in WITH_FFMPEG and importlib.util.find_spec("imageio_ffmpeg") is None:
            raise ConfigError("--video: needs imageio-ffmpeg: pip install 'offpolicy[video]', or write a .gif")
    draw_without_window()
    run = SavedRun.find(path, choice)
    check_drawing(run.env.id)
    if video is None and not has_display():
        instead = f"offpolicy play {shown_path(path)} --video run.gif"
        raise ConfigError(f"--video: got none, and no window can be opened here; write {instead}")
    mode, doing = (FILE, "filming") if video else (WINDOW, "showing")
    film = Film(run.actor(choice.device), run.env, episodes=episodes, seed=run.seed_of(choice), mode=mode)
    with contextlib.closing(film), Console(stderr=True).status(Text(f"{doing} {run.env.id}")):
        run.require_spaces(film.spec)
        drawn, count = write_video(film, film.fps, video) if video else (pictures := sum(1 for _ in film), pictures)
    returns = ", ".join(return_text(value, ",") for value in film.returns)
    what = f"{video or run.env.id}: {counted(count, 'picture')}, {drawn / film.fps:.1f} s"
    plain_console().print(f"{what}; returns {returns}", soft_wrap=True)
    return 0


def write_video(pictures: Iterable[Picture], fps: float, path: Path) -> tuple[int, int]:
    """Writes pictures into the file as they are made; what that raises leaves the file as it was.

    Returns how many there were, and how many of them the file holds. Raises `SaveError`.
    """
    import imageio.v2 as imageio

    from offpolicy.collect.video import GifTiming

    is_gif, gif = path.suffix.lower() == ".gif", GifTiming.of(fps)
    stride = gif.stride if is_gif else 1
    timing: dict[str, Any] = {"duration": gif.delays_ms, "loop": 0} if is_gif else {"fps": fps}
    drawn = count = 0
    try:
        with output_path(path) as new, contextlib.closing(imageio.get_writer(new, **timing)) as writer:
            for drawn, picture in enumerate(pictures, 1):
                if (drawn - 1) % stride == 0:
                    writer.append_data(picture)
                    count += 1
    except OSError as error:
        raise SaveError(f"{path}: {error.strerror or error}") from error
    return drawn, count
