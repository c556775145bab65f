"""`offpolicy export`: what is refused before anything is read, and a file that decides otherwise is not kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from offpolicy.checkpoint import read_best
from offpolicy.commands import export as command
from offpolicy.config.overrides import load_config
from offpolicy.envs.env_adapter import codec_of
from offpolicy.envs.make import make_env
from offpolicy.export.contract import contract_path, digest
from offpolicy.export.env_policy import EnvPolicy
from offpolicy.export.formats import Runner, write_torch
from tests.unit.commands.conftest import Typed, run_with_best


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a best policy of random weights, and no checkpoint."""
    path = tmp_path / "run"
    cfg = load_config(["algo.hidden_dims=[8,8]", "env.kwargs.max_episode_steps=20"])
    env = make_env(cfg.env)
    spec = codec_of(env).spec
    env.close()
    run_with_best(path, cfg, spec)
    return path


def test_files_that_cannot_be_made_are_refused(run: Path, refused: Typed) -> None:
    for existing in ("there.onnx", "taken_contract.json"):
        (run / existing).write_bytes(b"precious")
    for option, name, allowed in (
        ("--onnx", "policy.bin", "allowed a new file in a directory that exists, ending in .onnx"),
        ("--onnx", "there.onnx", "allowed a new file in a directory that exists"),
        ("--torch", "nowhere/policy.pt2", "allowed a new file in a directory that exists, ending in .pt2"),
        ("--torch", "taken.pt2", "taken_contract.json', allowed a new file"),
    ):
        assert allowed in refused("export", run, option, run / name)
    assert "--onnx: got nothing, allowed a new file: offpolicy export RUN --onnx pol" in refused("export", run)
    assert (run / "there.onnx").read_bytes() == b"precious"
    assert "holds no usable checkpoint" in refused("export", run, "--torch", run / "policy.pt2", code=66)


def test_the_best_policy_is_exported_with_its_contract(run: Path, tmp_path: Path, printed: Typed) -> None:
    file = tmp_path / "policy.pt2"
    assert "policy.pt2: env step 70; differs by at most" in printed("export", run, "--best", "--torch", file)
    contract = json.loads(contract_path(file).read_text())
    assert contract["files"]["policy.pt2"]["sha256"] == digest(file.read_bytes())
    assert contract["files"]["policy.pt2"]["parity"]["visited"] <= 1e-5
    assert contract["files"]["policy.pt2"]["parity"]["rows"] == 10_000
    saved = contract["checkpoint"]
    assert (saved["kind"], saved["env_steps"], saved["sha256"]) == ("best", 70, read_best(run).sha256)
    assert contract["env"] == {"id": "Pendulum-v1", "kwargs": {"max_episode_steps": 20}}


def test_a_file_that_decides_otherwise_is_not_kept(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Typed
) -> None:
    def write_wrong(module: EnvPolicy, file: IO[bytes]) -> Runner:
        right = write_torch(module, file)
        return lambda inputs: {name: value + np.float32(0.01) for name, value in right(inputs).items()}

    monkeypatch.setattr(command, "WRITERS", {"--torch": write_wrong})
    problem = refused("export", run, "--best", "--torch", tmp_path / "policy.pt2", code=74)
    assert "is not kept: it differs from the run's policy by 0.005 on random and 0.005 on visited" in problem
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
