"""`offpolicy play` and `record`: files that are refused, films and recordings that are whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.collect.evaluation import Episode, EpisodeCallbacks, run_episodes
from offpolicy.commands.play import save_demos, write_video
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
    saved = SimpleNamespace(env=SimpleNamespace(id="HalfCheetah-v5", batch=None))
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


def broken_film() -> Iterator[Any]:
    yield from np.zeros((2, 16, 16, 3), np.uint8)
    raise EnvFailure("fails in step")


def test_a_film_that_fails_leaves_the_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "x.gif").write_bytes(b"the earlier one")
    for path in (tmp_path / "x.gif", tmp_path / "new-x.gif"):
        with pytest.raises(EnvFailure, match="fails in step"):
            write_video(broken_film(), 30.0, path)
    assert [path.name for path in tmp_path.iterdir()] == ["x.gif"]
    assert (tmp_path / "x.gif").read_bytes() == b"the earlier one"


def downhill(obs: Float32) -> Float32:
    """Pushes a car in the direction in which it rolls."""
    return np.where(obs[:, 1:] >= 0.0, 0.8, -0.8).astype(np.float32)


def test_what_was_recorded_is_what_happened_to_the_end_of_each_episode(tmp_path: Path) -> None:
    """Some end before others side by side: those are reset, or have nothing left to do."""
    env, episodes = EnvConfig(id="MountainCarContinuous-v0"), list[Episode]()
    spec, callbacks = probe(env).spec, EpisodeCallbacks(on_end=episodes.append, keeps_steps=True)
    found = run_episodes(downhill, env, episodes=21, seed=5, callbacks=callbacks)
    assert save_demos(tmp_path / "demos.npz", episodes, spec) == found.length.sum()
    read = read_demos(str(tmp_path / "demos.npz"), spec)
    read.require_sequences()
    assert len(set(found.length)) > 1
    assert read.length.tolist() == found.length.tolist()
    np.testing.assert_allclose(read.ep_return, found.ep_return)
    np.testing.assert_allclose(read.action, downhill(read.obs), atol=1e-6)
    assert (read.terminated.sum(), read.truncated.sum()) == (21, 0)
    with pytest.raises(SaveError):
        save_demos(tmp_path / "nowhere" / "demos.npz", episodes, spec)
    assert [path.name for path in tmp_path.iterdir()] == ["demos.npz"]
