"""`offpolicy record`: what it refuses before a policy is loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from offpolicy.collect.evaluation import EpisodeCallbacks, run_episodes
from offpolicy.commands.record import Recorder, record
from offpolicy.commands.saved_run import PolicyChoice, SavedRun
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.probe import probe
from offpolicy.errors import ConfigError, SaveError
from offpolicy.replay.demonstrations import read_demos
from offpolicy.types import Float32, SpaceSpec

CHOICE = PolicyChoice(seed=None, step=None, device="cpu", overrides={})


@pytest.mark.parametrize("name", ["there.npz", "demos.txt", "nowhere/demos.npz"])
def test_only_a_new_npz_where_there_is_a_directory_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "there.npz").write_bytes(b"precious")
    with pytest.raises(ConfigError, match=r"--out: got .*, allowed a new file in a directory that exists, ending in"):
        record(tmp_path / "run", CHOICE, out=tmp_path / name, episodes=1)
    assert (tmp_path / "there.npz").read_bytes() == b"precious"


def test_actions_that_no_file_teaches_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = SpaceSpec(3, 2, (0.0, 0.0), (1.0, 2.0), nvec=(2, 3))
    monkeypatch.setattr(SavedRun, "find", lambda path, choice: SimpleNamespace(spec=spec))
    with pytest.raises(ConfigError, match=r"MultiDiscrete actions; sac, td3, flashsac, which learn from files, do not"):
        record(tmp_path / "run", CHOICE, out=tmp_path / "demos.npz", episodes=1)


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
    read.require_sequences("algo.n_step")
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
