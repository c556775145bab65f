"""A saved run: what of its environment may change, and what is refused without a checkpoint."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from offpolicy.algos.registry import make_policy
from offpolicy.checkpoint import BestPolicy, Checkpoint, CheckpointStore
from offpolicy.commands import saved_run
from offpolicy.commands.options import PolicyChoice
from offpolicy.commands.saved_run import SavedRun
from offpolicy.config.overrides import load_config
from offpolicy.config.run_files import write_config
from offpolicy.errors import CheckpointError, ConfigError
from offpolicy.types import SpaceSpec
from tests.fakes import shared_state
from tests.unit.commands.conftest import Typed, run_with_best

SPEC = SpaceSpec(3, 1, (-2.0,), (2.0,))  # Pendulum's


def choice(**env: Any) -> PolicyChoice:
    return PolicyChoice(overrides={"env": env} if env else {})


def test_the_newest_checkpoint_is_taken_and_damaged_ones_are_named(
    running: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (manifest,) = (running / "checkpoints").glob("step-*20/MANIFEST.json")
    manifest.write_text("{")
    assert SavedRun.find(running, choice()).checkpoint.env_steps == 10
    assert "step-000000000020/MANIFEST.json" in capsys.readouterr().err
    shutil.rmtree(running / "checkpoints")
    with pytest.raises(CheckpointError, match="holds no usable checkpoint"):
        SavedRun.find(running, choice())


def test_the_physics_of_the_environment_may_change_and_other_keys_may_not(running: Path) -> None:
    assert SavedRun.find(running, choice(kwargs={"g": 5.0})).env.kwargs == {"g": 5.0}
    with pytest.raises(ConfigError, match=r"^env\.id: cannot change here, allowed env\.kwargs, env\.measure"):
        SavedRun.find(running, choice(id="Other-v0"))


def test_no_command_acts_in_an_environment_whose_spaces_have_changed_since_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Typed
) -> None:
    """Other bounds gave other returns, demonstrations and contracts, without a word."""
    monkeypatch.setattr("offpolicy.collect.video.check_drawing", lambda env_id: None)  # ends before a picture
    run, out = tmp_path / "run", tmp_path / "out"
    out.mkdir()
    cfg = load_config(["env.kwargs.max_episode_steps=5", "algo.hidden_dims=[8]"])
    run_with_best(run, cfg, SPEC, trained_with=dataclasses.replace(SPEC, action_low=(-1.0,), action_high=(1.0,)))
    files = {"eval": (), "play": ("--video", out / "run.gif"), "record": ("--out", out / "demos.npz")}
    for command, options in {**files, "export": ("--torch", out / "policy.pt2")}.items():
        problem = refused(command, run, "--best", *options)
        assert "cannot act there: action_low was (-1.0,), is (-2.0,)" in problem
    assert list(out.iterdir()) == []
    assert not (run / "eval.jsonl").exists()


def save(run: Path, env_steps: int) -> None:
    """Saves a checkpoint of a run that goes on, and keeps two: of a policy whose every number is its env steps."""
    numbers = make_policy(load_config([]).algo, SPEC).state_dict()
    with CheckpointStore(run / "checkpoints", keep=2).begin(env_steps) as draft:
        draft.add_json("state", shared_state(env_steps))
        draft.add_tensors(
            "learner", {f"policy.{name}": np.full(t.shape, env_steps, np.float32) for name, t in numbers.items()}
        )


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """A run with checkpoints at 10 and 20."""
    write_config(tmp_path, load_config([]), SPEC)
    for env_steps in (10, 20):
        save(tmp_path, env_steps)
    return tmp_path


def test_a_policy_stays_when_the_run_goes_on_and_removes_its_checkpoint(running: Path) -> None:
    """It was read when it was wanted, after other runs were found or the environment was made."""
    found = [SavedRun.find(running, PolicyChoice(step=step)) for step in (None, 20, 10)]
    shutil.rmtree(running / "checkpoints")
    assert [next(each.policy().parameters()).unique().tolist() for each in found] == [[20.0], [20.0], [10.0]]


def test_a_checkpoint_that_goes_before_its_policy_is_read_gives_way_to_the_next(
    running: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = saved_run.learner_tensors

    def read_late(checkpoint: Checkpoint | BestPolicy) -> dict[str, Tensor]:
        if checkpoint.env_steps == 20:
            for env_steps in (30, 40):
                save(running, env_steps)
        return read(checkpoint)

    monkeypatch.setattr(saved_run, "learner_tensors", read_late)
    found = SavedRun.find(running, choice())
    assert found.checkpoint.env_steps == 40
    assert next(found.policy().parameters()).unique().tolist() == [40.0]
