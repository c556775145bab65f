"""`offpolicy play` and `record`: files that are refused, films and recordings that are whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.collect.evaluation import EpisodeCallbacks, run_episodes
from offpolicy.commands.play import Recorder, write_video
from offpolicy.commands.saved_run import SavedRun
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.probe import probe
from offpolicy.errors import EnvFailure, SaveError
from offpolicy.replay.demonstrations import read_demos
from offpolicy.types import Float32, SpaceSpec
from tests.unit.commands.conftest import Typed


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "my run").mkdir()
    (tmp_path / "my run" / "config.yaml").touch()
    return tmp_path / "my run"


def test_files_that_cannot_be_written_are_refused_before_the_run_is_read(run: Path, refused: Typed) -> None:
    problem = refused("play", run, "--video", run / "x.txt")
    assert "x.txt', allowed a file that can be written in a directory that exists, ending in .gif or .mp4" in problem
    (run / "there.npz").write_bytes(b"precious")
    for name in ("there.npz", "demos.txt", "nowhere/demos.npz"):
        assert ", allowed a new file in a directory that exists, ending in" in refused(
            "record", run, "--out", run / name
        )
    assert (run / "there.npz").read_bytes() == b"precious"


def test_without_a_display_a_file_is_asked_for(run: Path, monkeypatch: pytest.MonkeyPatch, refused: Typed) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    saved = SimpleNamespace(cfg=SimpleNamespace(seed=1), env=SimpleNamespace(id="HalfCheetah-v5"))
    monkeypatch.setattr(SavedRun, "find", lambda *_: saved)
    problem = refused("play", run)
    assert "no window can be opened here; write offpolicy play '" in problem
    assert "/my run' --video" in problem
    saved.env.id = "Pendulum-v1"
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "Pendulum-v1 is drawn by pygame" in refused("play", run)  # no file could be written either


def test_actions_that_no_file_teaches_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch, refused: Typed) -> None:
    saved = SimpleNamespace(spec=SpaceSpec(3, 2, (0.0, 0.0), (1.0, 2.0), nvec=(2, 3)), path=run)
    monkeypatch.setattr(SavedRun, "find", lambda path, choice: saved)
    problem = "MultiDiscrete actions; sac, td3, flashsac, which learn from files, do not"
    assert problem in refused("record", run, "--out", run / "demos.npz")


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


PENDULUM = EnvConfig(id="Pendulum-v1", kwargs={"max_episode_steps": 7})


def swing(obs: Float32) -> Float32:
    return np.clip(3.0 * obs[:, 2:], -1.0, 1.0).astype(np.float32)


def test_what_was_recorded_is_what_happened(tmp_path: Path) -> None:
    """More episodes than environments side by side, so that some are reset and some have nothing left to do."""
    spec = probe(PENDULUM)
    recorder = Recorder(spec)
    found = run_episodes(
        swing, PENDULUM, episodes=21, seed=3, callbacks=EpisodeCallbacks(on_end=recorder, keeps_steps=True)
    )
    assert recorder.save(tmp_path / "demos.npz") == 21 * 7
    read = read_demos(str(tmp_path / "demos.npz"), spec)
    read.require_sequences()
    assert read.length.tolist() == [7] * 21
    np.testing.assert_allclose(read.ep_return, found.ep_return)
    np.testing.assert_allclose(read.action, swing(read.obs), atol=1e-6)
    assert read.truncated.sum() == 21


def downhill(obs: Float32) -> Float32:
    """Pushes a car in the direction in which it rolls."""
    return np.where(obs[:, 1:] >= 0.0, 0.8, -0.8).astype(np.float32)


def test_episodes_that_end_before_others_side_by_side_are_recorded_to_their_end_only(tmp_path: Path) -> None:
    env = EnvConfig(id="MountainCarContinuous-v0")
    spec = probe(env)
    recorder = Recorder(spec)
    found = run_episodes(
        downhill, env, episodes=4, seed=5, callbacks=EpisodeCallbacks(on_end=recorder, keeps_steps=True)
    )
    recorder.save(tmp_path / "demos.npz")
    read = read_demos(str(tmp_path / "demos.npz"), spec)
    assert len(set(found.length)) > 1
    assert read.length.tolist() == found.length.tolist()
    assert (read.terminated.sum(), read.truncated.sum()) == (4, 0)


def test_a_disk_that_refuses_leaves_no_half_file(tmp_path: Path) -> None:
    recorder = Recorder(probe(PENDULUM))
    run_episodes(swing, PENDULUM, episodes=1, seed=3, callbacks=EpisodeCallbacks(on_end=recorder, keeps_steps=True))
    with pytest.raises(SaveError):
        recorder.save(tmp_path / "nowhere" / "demos.npz")
    assert list(tmp_path.iterdir()) == []
