"""`offpolicy play`: files that are refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from offpolicy.commands.play import check_video, play
from offpolicy.commands.saved_run import PolicyChoice
from offpolicy.errors import ConfigError


def test_another_ending_is_refused_before_the_run_is_read(tmp_path: Path) -> None:
    choice = PolicyChoice(seed=None, step=None, device="cpu", overrides={})
    with pytest.raises(ConfigError, match=r"--video: got .*x\.txt', allowed a file name that ends in \.gif, \.mp4"):
        play(tmp_path / "missing", choice, video=tmp_path / "x.txt", episodes=1)


def test_a_video_without_its_encoder_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str, *rest: Any) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", found)
    with pytest.raises(ConfigError, match=r"\.mp4 needs imageio-ffmpeg: pip install 'offpolicy\[video\]'"):
        check_video(tmp_path / "x.mp4")
    check_video(tmp_path / "x.gif")


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="allowed a file that can be written: No such file or directory"):
        check_video(tmp_path / "nowhere" / "x.gif")


def test_without_a_display_a_file_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    choice = PolicyChoice(seed=None, step=None, device="cpu", overrides={})
    with pytest.raises(ConfigError, match=r"no window can be opened here; write offpolicy play '.*/my run' --video"):
        play(tmp_path / "my run", choice, video=None, episodes=1)


def test_trying_a_file_leaves_nothing_behind(tmp_path: Path) -> None:
    check_video(tmp_path / "x.gif")
    assert list(tmp_path.iterdir()) == []
