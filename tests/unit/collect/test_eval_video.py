"""Videos of evaluations: bounded, made by another process, and never the end of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from offpolicy.collect import eval_video
from offpolicy.collect.eval_video import EvalVideo, make_room, save_video
from offpolicy.config.schema import RunConfig
from offpolicy.types import SpaceSpec

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


def test_a_video_that_fails_in_the_middle_leaves_no_file(tmp_path: Path) -> None:
    def breaking() -> Iterator[Any]:
        yield from pictures(2)
        raise RuntimeError("no display")

    with pytest.raises(RuntimeError, match="no display"):
        save_video(breaking(), 30, tmp_path / "videos" / "a.gif")
    assert list((tmp_path / "videos").iterdir()) == []


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
        monkeypatch.setattr(eval_video, "WORKER", code)
        cfg = RunConfig.from_mapping({"eval": {"video": True}})
        return EvalVideo(cfg, SPEC, tmp_path, warnings.append)

    return make


def film(video: EvalVideo, *steps: int) -> None:
    for env_steps in steps:
        video.film({"policy.x": np.zeros(2, np.float32)}, env_steps)


@pytest.mark.mp
def test_a_process_that_fails_is_warned_of_once_and_no_other_is_started(make_video: Any, warnings: list[str]) -> None:
    video = make_video(FAIL)
    film(video, 100)
    video.finish()
    film(video, 200, 300)
    video.close()
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
    video = make_video(f"import os, pathlib, time; {part}; {then}")
    film(video, 100)
    while not list(videos.iterdir()):
        time.sleep(0.02)
    (path,) = videos.iterdir()
    ending(video)
    video.close()
    assert list(videos.iterdir()) == []
    assert not Path(f"/proc/{path.name.split('.')[-2]}").exists()
