"""`offpolicy export`: what is refused before anything is read, and a file that decides otherwise is not kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from offpolicy.algos.registry import make_policy
from offpolicy.checkpoint import BestStore, read_best
from offpolicy.commands import policy_files as command
from offpolicy.commands.policy_files import check_files, export
from offpolicy.commands.saved_run import PolicyChoice
from offpolicy.config.overrides import load_config
from offpolicy.config.run_files import write_config
from offpolicy.envs.env_adapter import codec_of
from offpolicy.envs.make import make_env
from offpolicy.errors import CheckpointError, ConfigError, SaveError
from offpolicy.export.contract import contract_path, digest
from offpolicy.export.env_policy import EnvPolicy
from offpolicy.export.formats import Runner, write_torch
from offpolicy.types import EvalResult

BEST = PolicyChoice(seed=None, step=None, device="cpu", overrides={}, is_best=True)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a best policy of random weights, and no checkpoint."""
    return run_of(tmp_path / "run", "env.kwargs.max_episode_steps=20")


def run_of(path: Path, *words: str) -> Path:
    path.mkdir()
    cfg = load_config(["algo.hidden_dims=[8,8]", *words])
    env = make_env(cfg.env)
    spec = codec_of(env).spec
    env.close()
    write_config(path, cfg, spec)
    state = make_policy(cfg.algo, spec).state_dict()
    BestStore(path).save({f"policy.{name}": t.numpy() for name, t in state.items()}, EvalResult(70, 1.0, 0.0, 20.0, 1))
    return path


@pytest.mark.parametrize(
    ("option", "name", "allowed"),
    [
        ("--onnx", "policy.bin", "a new file in a directory that exists, ending in .onnx"),
        ("--onnx", "there.onnx", "a new file in a directory that exists"),
        ("--torch", "nowhere/policy.pt2", "a new file in a directory that exists, ending in .pt2"),
        ("--torch", "taken.pt2", "--torch: the contract beside it: got .*taken_contract.json', allowed a new file"),
    ],
)
def test_files_that_cannot_be_made_are_refused(tmp_path: Path, option: str, name: str, allowed: str) -> None:
    for existing in ("there.onnx", "taken_contract.json"):
        (tmp_path / existing).write_bytes(b"precious")
    with pytest.raises(ConfigError, match=allowed):
        check_files({option: tmp_path / name})
    assert (tmp_path / "there.onnx").read_bytes() == b"precious"


def test_without_a_file_it_says_how_to_name_one() -> None:
    with pytest.raises(ConfigError, match=r"--onnx: got nothing, allowed a new file: offpolicy export RUN --onnx pol"):
        check_files({})


def test_the_best_policy_is_exported_with_its_contract(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "policy.pt2"
    export(run, BEST, {"--torch": file})
    contract = json.loads(contract_path(file).read_text())
    assert contract["files"]["policy.pt2"]["sha256"] == digest(file.read_bytes())
    assert contract["files"]["policy.pt2"]["parity"]["visited"] <= 1e-5
    assert contract["files"]["policy.pt2"]["parity"]["rows"] == 10_000
    saved = contract["checkpoint"]
    assert (saved["kind"], saved["env_steps"], saved["sha256"]) == ("best", 70, read_best(run).sha256)
    assert contract["env"] == {"id": "Pendulum-v1", "kwargs": {"max_episode_steps": 20}}


def test_a_file_that_decides_otherwise_is_not_kept(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_wrong(module: EnvPolicy, file: IO[bytes]) -> Runner:
        right = write_torch(module, file)
        return lambda inputs: {name: value + np.float32(0.01) for name, value in right(inputs).items()}

    monkeypatch.setattr(command, "WRITERS", {"--torch": write_wrong})
    with pytest.raises(
        SaveError, match=r"is not kept: it differs from the run's policy by 0\.005 on random and 0\.005"
    ):
        export(run, BEST, {"--torch": tmp_path / "policy.pt2"})
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_without_a_checkpoint_is_refused(run: Path, tmp_path: Path) -> None:
    newest = PolicyChoice(seed=None, step=None, device="cpu", overrides={})
    with pytest.raises(CheckpointError, match="holds no usable checkpoint"):
        export(run, newest, {"--torch": tmp_path / "policy.pt2"})
