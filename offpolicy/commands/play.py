"""`offpolicy play RUN [--video FILE]`: a saved policy at work, in a window or as a video file."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from offpolicy.collect.film import FILE, WINDOW, Film, GifTiming, check_drawing, draw_without_window, has_display
from offpolicy.commands.saved_run import PolicyChoice, SavedRun
from offpolicy.errors import ConfigError, SaveError
from offpolicy.logger.console import plain_console, shown_path
from offpolicy.number_text import counted, return_text

WITH_FFMPEG = (".mp4", ".mkv", ".webm")


def play(path: Path, choice: PolicyChoice, *, video: Path | None, episodes: int) -> int:
    """Shows the policy, or writes the video, and prints its returns. Raises `ConfigError`, `EnvFailure`, `SaveError`.

    What is missing is said before the policy is loaded.
    """
    if video is not None:
        check_video(video)
    draw_without_window()
    run = SavedRun.find(path, choice)
    check_drawing(run.env.id)
    if video is None:
        check_display(path)
    seed = run.cfg.seed if choice.seed is None else choice.seed
    mode = FILE if video else WINDOW
    film = Film(run.actor(choice.device), run.env, episodes=episodes, seed=seed, mode=mode)
    doing = "filming" if video else "showing"
    with contextlib.closing(film), Console(stderr=True).status(Text(f"{doing} {run.env.id}")):
        run.require_spaces(film.spec)
        drawn, count = _write(film, video) if video else (pictures := sum(1 for _ in film), pictures)
    returns = ", ".join(return_text(value, ",") for value in film.returns)
    plain_console().print(
        f"{video or run.env.id}: {counted(count, 'picture')}, {drawn / film.fps:.1f} s; returns {returns}",
        soft_wrap=True,
    )
    return 0


def check_display(run: Path) -> None:
    """Raises `ConfigError` where no window can be opened."""
    if not has_display():
        instead = f"offpolicy play {shown_path(run)} --video run.gif"
        raise ConfigError(f"--video: got none, and no window can be opened here; write {instead}")


def check_video(path: Path) -> None:
    """Raises `ConfigError`, before anything is made, if the file cannot be written."""
    kind, known = path.suffix.lower(), (".gif", *WITH_FFMPEG)
    if kind not in known:
        raise ConfigError(f"--video: got {str(path)!r}, allowed a file name that ends in {', '.join(known)}")
    if kind in WITH_FFMPEG and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise ConfigError(f"--video: {kind} needs imageio-ffmpeg: pip install 'offpolicy[video]', or write a .gif")
    place = _place_of(path)
    is_device = place.exists() and not place.is_file()
    new = _new_file(place, path)
    try:
        if place.exists():  # one that may not be written is not replaced either
            place.open("ab").close()
        if not is_device:
            new.open("ab").close()
            new.unlink()
    except OSError as error:
        raise ConfigError(f"--video: got {str(path)!r}, allowed a file that can be written: {error.strerror}") from None


def _write(film: Film, path: Path) -> tuple[int, int]:
    """Writes the pictures into the file; what it raises leaves the file as it was.

    Returns how many the environment has drawn, and how many of them the file holds.
    """
    try:
        with _replacing(path) as new:
            return _write_pictures(film, new)
    except OSError as error:
        raise SaveError(f"{path}: {error.strerror or error}") from error


def _place_of(path: Path) -> Path:
    """Returns the file that is written: of a link what it names, of one that names itself the link."""
    return Path(os.path.realpath(path))


def _new_file(place: Path, path: Path) -> Path:
    """Returns a hidden file beside the place. It ends as `path` does: the ending names the format."""
    return place.with_name(f".video-{os.getpid()}{path.suffix}")


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yields a new file of the same ending that replaces `path`, or what it links to, when the block ends.

    A pipe or a device is yielded itself. Raises OSError.
    """
    place = _place_of(path)
    if place.exists() and not place.is_file():
        yield path
        return
    new = _new_file(place, path)
    try:
        yield new
        new.replace(place)
    finally:
        new.unlink(missing_ok=True)


def _write_pictures(film: Film, path: Path) -> tuple[int, int]:
    """Writes the pictures into the file as they are made. Returns as `_write`. Raises OSError."""
    import imageio.v2 as imageio

    is_gif = path.suffix.lower() == ".gif"
    gif = GifTiming.of(film.fps)
    stride = gif.stride if is_gif else 1
    timing: dict[str, Any] = {"duration": gif.delays_ms, "loop": 0} if is_gif else {"fps": film.fps}
    drawn = count = 0
    writer: Any = imageio.get_writer(path, **timing)  # Any: imageio's type leaves append_data out
    try:
        for picture in film:
            if drawn % stride == 0:
                writer.append_data(picture)
                count += 1
            drawn += 1
    except BaseException:  # imageio's own `with` closes nothing then, and its ffmpeg goes on
        with contextlib.suppress(Exception):
            writer.close()
        raise
    writer.close()
    return drawn, count
