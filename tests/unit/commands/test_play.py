"""`offpolicy play`: files that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.commands.play import play, write_video
from offpolicy.commands.saved_run import PolicyChoice, SavedRun
from offpolicy.errors import ConfigError, EnvFailure


def test_another_ending_is_refused_before_the_run_is_read(tmp_path: Path) -> None:
    choice = PolicyChoice(seed=None, step=None, device="cpu", overrides={})
    with pytest.raises(ConfigError, match=r"--video: got .*x\.txt', allowed a file .* ending in \.gif or \.mp4"):
        play(tmp_path / "missing", choice, video=tmp_path / "x.txt", episodes=1)


def test_without_a_display_a_file_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    choice = PolicyChoice(seed=None, step=None, device="cpu", overrides={})
    saved = SimpleNamespace(cfg=SimpleNamespace(seed=1), env=SimpleNamespace(id="HalfCheetah-v5"))
    monkeypatch.setattr(SavedRun, "find", lambda *_: saved)
    with pytest.raises(ConfigError, match=r"no window can be opened here; write offpolicy play '.*/my run' --video"):
        play(tmp_path / "my run", choice, video=None, episodes=1)
    saved.env.id = "Pendulum-v1"
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="Pendulum-v1 is drawn by pygame"):  # no file could be written either
        play(tmp_path / "my run", choice, video=None, episodes=1)


class BrokenFilm:
    """A film that ends with an error after its second picture."""

    def __iter__(self) -> Iterator[Any]:
        yield from np.zeros((2, 16, 16, 3), np.uint8)
        raise EnvFailure("fails in step")


@pytest.mark.parametrize("name", ["x.gif", "x.mp4"])
def test_a_film_that_fails_leaves_the_earlier_one(tmp_path: Path, name: str) -> None:
    if name.endswith(".mp4"):
        pytest.importorskip("imageio_ffmpeg")
    (tmp_path / name).write_bytes(b"the earlier one")
    for path in (tmp_path / name, tmp_path / f"new-{name}"):
        with pytest.raises(EnvFailure, match="fails in step"):
            write_video(BrokenFilm(), 30.0, path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"the earlier one"
