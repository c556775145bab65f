"""Videos of evaluations: bounded, made by another process, and never the end of a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import pytest
from PIL import Image

from offpolicy.collect import eval_video
from offpolicy.collect.eval_video import MOST_PICTURES, MOST_PIXELS, EvalVideo, make_room, save_video
from offpolicy.config.schema import RunConfig
from offpolicy.types import SpaceSpec
from tests.held_process import HeldProcess

SPEC = SpaceSpec(4, 2, (-1.0,) * 2, (1.0,) * 2)
SLEEP, FAIL, END = "import time; time.sleep(60)", "raise SystemExit(3)", "pass"


def pictures(count: int, side: int = 8) -> Iterator[Any]:
    for index in range(count):
        picture = np.full((side, side // 2, 3), 250, np.uint8)
        picture[index % side] = index % 200
        yield picture


def test_a_video_has_a_most_of_pictures_and_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval_video, "MOST_PICTURES", 5)
    save_video(pictures(50, side=2 * MOST_PIXELS), 30, tmp_path / "videos" / "a.gif")
    assert imageio.imread(tmp_path / "videos" / "a.gif").shape == (5, MOST_PIXELS, MOST_PIXELS // 2, 3)
    assert MOST_PICTURES == 600


@pytest.mark.parametrize("fps", [10, 30, 50, 60, 67, 125])
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
    """`make_video(code, is_on=True)`: videos that are made by a process which runs `code`."""

    def make(code: str, is_on: bool = True) -> EvalVideo:
        monkeypatch.setattr(eval_video, "WORKER", code)
        cfg = RunConfig.from_mapping({"eval": {"video": is_on}})
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
def test_while_one_is_made_the_newest_waits_for_its_turn(make_video: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    video, started = make_video(END), list[bytes]()
    start = video._start
    monkeypatch.setattr(video, "_start", lambda content: (started.append(content), start(content)))
    film(video, 100, 200, 300)
    assert len(started) == 1
    video.finish()
    assert [f"step-{step:012d}.gif".encode() in content for step, content in zip((100, 300), started, strict=True)]
    video.close()


@pytest.mark.mp
def test_a_run_that_ends_kills_the_one_that_is_made(make_video: Any, warnings: list[str]) -> None:
    video = make_video(SLEEP)
    film(video, 100)
    pid = video._worker.pid
    begun = time.monotonic()
    video.close()
    assert time.monotonic() - begun < 20
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert warnings == []


def test_one_that_the_kernel_holds_is_given_up(make_video: Any) -> None:
    video, held = make_video(SLEEP), HeldProcess()
    video._worker = held
    video.close()
    assert (held.was_killed, held.limits_s) == (True, [30.0])


@pytest.mark.mp
def test_one_that_takes_too_long_is_killed(
    make_video: Any, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_video, "MOST_S", 0.0)
    video = make_video(SLEEP)
    film(video, 100, 200)
    assert warnings == ["eval.video: no video, it took longer than 0 s. No more evaluations are filmed"]
    video.close()


@pytest.mark.mp
@pytest.mark.parametrize(("then", "ending"), [("time.sleep(60)", EvalVideo.close), ("os._exit(3)", EvalVideo.finish)])
def test_a_process_that_ends_in_the_middle_leaves_no_part_of_a_video(
    make_video: Any, tmp_path: Path, then: str, ending: Callable[[EvalVideo], None]
) -> None:
    """Nothing counted it, and nothing removed it."""
    videos = tmp_path / "videos"
    videos.mkdir()
    part = f"pathlib.Path('{videos}', f'.step-000000000100.gif.{{os.getpid()}}.tmp').touch()"
    video = make_video(f"import os, pathlib, time; {part}; {then}")
    film(video, 100)
    while not list(videos.iterdir()):
        time.sleep(0.02)
    ending(video)
    video.close()
    assert list(videos.iterdir()) == []


def test_nothing_is_started_where_it_is_off(make_video: Any) -> None:
    video = make_video(FAIL, is_on=False)
    film(video, 100)
    assert video._worker is None
    video.close()
