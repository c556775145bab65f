"""A saved run: what of its environment may change, and what is refused without a checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from offpolicy.checkpoint import BestPolicy, BestStore, Checkpoint, CheckpointStore
from offpolicy.commands import saved_run
from offpolicy.commands.evaluate import evaluate
from offpolicy.commands.export import export
from offpolicy.commands.play import play
from offpolicy.commands.record import record
from offpolicy.commands.saved_run import PolicyChoice, SavedRun
from offpolicy.config.overrides import load_config
from offpolicy.config.schema import write_config
from offpolicy.errors import CheckpointError, ConfigError
from offpolicy.nets.policy import make_policy
from offpolicy.types import EvalResult, SpaceSpec

SPEC = SpaceSpec(3, 1, (-1.0,), (1.0,))

STATE: dict[str, Any] = {
    "env_steps": 0, "last_eval_step": 0, "num_collectors": 1, "num_ranks": 1, "numbers": {"num_updates": 5},
    "start": [0, 0], "replay_first": [], "replay_end": [], "fingerprint": {},
}  # fmt: skip


class FakeStore:
    """A store of checkpoints that finds `found`."""

    found: Any = None

    def __init__(self, path: Path, check: object = None) -> None:
        self.rejected = ("step-000000000007: damaged",)

    def newest_valid(self, *, reads_rows: bool) -> Any:
        assert not reads_rows  # gigabytes, of which nothing is wanted
        return self.found


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a checkpoint whose environment, probed again, has the same spaces."""
    write_config(tmp_path, load_config([]), SPEC)
    monkeypatch.setattr(saved_run, "CheckpointStore", FakeStore)
    monkeypatch.setattr(FakeStore, "found", "a checkpoint")
    monkeypatch.setattr(saved_run, "probe", lambda env: SPEC)
    monkeypatch.setattr(saved_run, "learner_tensors", lambda checkpoint: {})
    return tmp_path


def choice(**env: Any) -> PolicyChoice:
    return PolicyChoice(seed=None, step=None, device="cpu", overrides={"env": env} if env else {})


def test_the_newest_checkpoint_is_taken_and_damaged_ones_are_named(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = SavedRun.find(run, choice())
    assert (found.checkpoint, found.env.id) == ("a checkpoint", "Pendulum-v1")
    assert capsys.readouterr().err == "offpolicy: step-000000000007: damaged\n"


def test_a_run_without_a_checkpoint_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeStore, "found", None)
    with pytest.raises(CheckpointError, match="holds no usable checkpoint"):
        SavedRun.find(run, choice())


@pytest.mark.parametrize(
    ("total", "when"), [(20_000, r"at its end, or after 1 minute \("), (90_000, "at env step 50,000")]
)
def test_of_a_run_in_progress_it_says_when_the_first_checkpoint_comes(
    run: Path, monkeypatch: pytest.MonkeyPatch, total: int, when: str
) -> None:
    write_config(run, load_config([f"total_timesteps={total}"]), SPEC)
    monkeypatch.setattr(FakeStore, "found", None)
    monkeypatch.setattr(saved_run, "is_running", lambda path: True)
    with pytest.raises(CheckpointError, match=f"is in progress, and its first checkpoint comes {when}"):
        SavedRun.find(run, choice())


def test_of_a_run_in_progress_it_says_what_it_takes(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = SimpleNamespace(env_steps=7_000)
    monkeypatch.setattr(FakeStore, "found", found)
    monkeypatch.setattr(saved_run, "is_running", lambda path: True)
    SavedRun.find(run, choice())
    assert (
        f"{run} is in progress; this is its newest checkpoint, of 7,000 of 20,000 env steps" in capsys.readouterr().err
    )


def test_the_physics_of_the_environment_may_change(run: Path) -> None:
    assert SavedRun.find(run, choice(kwargs={"g": 5.0})).env.kwargs == {"g": 5.0}


def test_other_keys_of_the_environment_are_refused_by_name(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"^env\.id: cannot change here, allowed env\.kwargs, env\.measure"):
        SavedRun.find(run, choice(id="Other-v0"))


def test_an_environment_with_other_spaces_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_run, "probe", lambda env: SpaceSpec(4, 1, (-1.0,), (1.0,)))
    with pytest.raises(ConfigError, match="cannot act there: obs_dim 3 before, 4 now"):
        SavedRun.find(run, choice(kwargs={"g": 5.0}))


@pytest.mark.parametrize(
    ("before", "now", "refusal"),
    [((2, 3), (3, 2), r"{} \(2, 3\) before, \(3, 2\) now"), ((2, 3), (2, 3), None), ((), (3, 2), None)],
)
@pytest.mark.parametrize("field", ["box_shape", "action_shape"])
def test_another_shape_of_as_many_numbers_is_refused_where_the_run_recorded_one(
    run: Path, field: str, before: tuple[int, ...], now: tuple[int, ...], refusal: str | None
) -> None:
    six, unknown = dataclasses.replace(SPEC, obs_dim=6, action_dim=6), getattr(SPEC, field)
    write_config(run, load_config([]), dataclasses.replace(six, **{field: before or unknown}))
    found, spec = SavedRun.find(run, choice()), dataclasses.replace(six, **{field: now})
    with pytest.raises(ConfigError, match=refusal.format(field)) if refusal else contextlib.nullcontext():
        found.require_spaces(spec)


COMMANDS: dict[str, Callable[[Path, PolicyChoice, Path], int]] = {
    "eval": lambda run, choice, out: evaluate({"run": run}, choice, episodes=1),
    "play": lambda run, choice, out: play(run, choice, video=out / "run.gif", episodes=1),
    "record": lambda run, choice, out: record(run, choice, out=out / "demos.npz", episodes=1),
    "export": lambda run, choice, out: export(run, choice, {"--torch": out / "policy.pt2"}),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_acts_in_an_environment_whose_spaces_have_changed_since_training(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other bounds gave other returns, demonstrations and contracts, and nobody was told."""
    monkeypatch.setattr("offpolicy.commands.play.check_drawing", lambda env_id: None)  # ends before a picture
    run, out = tmp_path / "run", tmp_path / "out"
    run.mkdir()
    out.mkdir()
    cfg = load_config(["env.kwargs.max_episode_steps=5", "algo.hidden_dims=[8]"])
    write_config(run, cfg, SPEC)  # Pendulum's own bounds are 2
    numbers = make_policy(cfg.algo, SPEC).state_dict()
    best = {f"policy.{name}": tensor.numpy() for name, tensor in numbers.items()}
    BestStore(run).save(best, EvalResult(70, 1.0, 0.0, 5.0, 1))
    chosen = PolicyChoice(seed=None, step=None, device="cpu", overrides={}, is_best=True)
    with pytest.raises(ConfigError, match=r"cannot act there: action_low \(-1\.0,\) before, \(-2\.0,\) now"):
        COMMANDS[command](run, chosen, out)
    assert list(out.iterdir()) == []
    assert not (run / "eval.jsonl").exists()


def save(run: Path, env_steps: int) -> None:
    """Saves a checkpoint of a run that goes on, and keeps two: of a policy whose every number is its env steps."""
    numbers = make_policy(load_config([]).algo, SPEC).state_dict()
    with CheckpointStore(run / "checkpoints", keep=2).begin(env_steps) as draft:
        draft.add_json("state", STATE | {"env_steps": env_steps})
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


@pytest.mark.parametrize("step", [None, 20])
def test_a_policy_stays_when_the_run_goes_on_and_removes_its_checkpoint(running: Path, step: int | None) -> None:
    """It was read when it was wanted, after other runs were found or the environment was made."""
    found = SavedRun.find(running, PolicyChoice(seed=None, step=step, device="cpu", overrides={}))
    shutil.rmtree(running / "checkpoints")
    assert next(found.policy().parameters()).unique().tolist() == [20.0]


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
