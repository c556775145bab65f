"""`python -m benchmarks.learning.hand_film RUN [seed]`: one full turn of a trained hand, as docs/img/hora-turn.*.

A picture of eight moments and a clip in real time, from the first half turn of an episode on. The object's sides have
different colours, so that turning is told from rocking.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import imageio.v3 as imageio
import numpy as np

from benchmarks.results import REPOSITORY
from offpolicy.collect.film import Film, Picture, draw_without_window
from offpolicy.commands.saved_run import PolicyChoice, SavedRun
from offpolicy.types import Float64

OUT = REPOSITORY / "docs" / "img" / "hora-turn"
MOMENTS, SMALLER, CLIP_EVERY = 8, 3, 2  # pictures of a turn; of 480 pixels, and of the clip's pictures, one in so many


class Noted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Notes the rotation after every step, which a film does not show."""

    turned: ClassVar[list[float]] = []  # rad, of the steps of the only episode

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # Any: Gymnasium's own types
        result = super().step(action)
        self.turned.append(result[4]["net_rotation"])
        return result


def one_turn(turned: Float64) -> slice:
    """Returns the pictures from half a turn on to one and a half. Raises `ValueError` if there are none."""
    ends = [int(np.argmax(turned >= angle)) for angle in (np.pi, 3.0 * np.pi)]
    if turned.max() < 3.0 * np.pi:
        raise ValueError(f"the object turns by {turned.max():.1f} rad in this episode, needed 9.5; try another seed")
    return slice(ends[0], ends[1] + 1)


def smaller(picture: Picture) -> Picture:
    """Returns a picture of a third of the width and height, each pixel the mean of nine."""
    height, width = (size // SMALLER for size in picture.shape[:2])
    parts = picture[: height * SMALLER, : width * SMALLER].reshape(height, SMALLER, width, SMALLER, 3)
    return parts.mean(axis=(1, 3)).astype(np.uint8)


def moments(pictures: list[Picture]) -> Picture:
    """Returns `MOMENTS` of the pictures in two rows, evenly in time."""
    index = np.linspace(0, len(pictures) - 1, MOMENTS).round().astype(int)
    half = MOMENTS // 2
    return np.concatenate([np.concatenate([pictures[i] for i in row], axis=1) for row in (index[:half], index[half:])])


def main(run: str, seed: int = 1) -> None:
    """Writes the picture and the clip."""
    draw_without_window()
    saved = SavedRun.find(Path(run), PolicyChoice(seed, step=None, device="cpu", overrides={}))
    env = dataclasses.replace(saved.env, wrappers=(f"{__spec__.name}:{Noted.__name__}",))
    film = Film(saved.actor("cpu"), env, episodes=1, seed=seed)
    with contextlib.closing(film):
        pictures = [smaller(picture) for picture in film]
    # The module that an environment's option names is not this one, where this one is the program.
    turned = sys.modules[__spec__.name].Noted.turned
    pictures = pictures[one_turn(np.array([0.0, *turned]))]
    imageio.imwrite(OUT.with_suffix(".png"), moments(pictures))
    imageio.imwrite(OUT.with_suffix(".gif"), pictures[::CLIP_EVERY], duration=1000 * CLIP_EVERY / film.fps, loop=0)
    print(f"{OUT}: {len(pictures) / film.fps:.1f} s, return {film.returns[0]:.1f}, {turned[-1]:.1f} rad in the episode")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
