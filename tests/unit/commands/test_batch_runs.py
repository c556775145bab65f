"""Commands on saved runs whose environment is a batch: whatever needs no pictures works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpolicy.config.overrides import load_config
from offpolicy.envs.vector import make_vector
from offpolicy.export.contract import contract_path
from tests.unit.commands.conftest import Typed, run_with_best

BATCHES = {
    "batch": ("env.batch=offpolicy.envs.toy_batch:PointMasses", "env.id=", "env.kwargs.limit=7"),
    "tensors": ("env.batch=offpolicy.envs.toy_batch:PointMasses", "env.id=", "env.kwargs={limit: 7, device: cpu}"),
    "id": ("env.id=tests.unit.envs.test_batch:OnlyVector-v0", "env.vectorization=vector"),  # episodes of 4 steps
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_is_evaluated_played_recorded_and_exported_without_pictures(
    tmp_path: Path, printed: Typed, refused: Typed, kind: str
) -> None:
    run, demos, file = tmp_path / "run", tmp_path / "demos.npz", tmp_path / "policy.pt2"
    cfg, length = load_config(["algo.hidden_dims=[8,8]", *BATCHES[kind]]), 4 if kind == "id" else 7
    vector = make_vector(cfg.env, 1)
    vector.close()
    run_with_best(run, cfg, vector.spec)
    assert f"mean_ep_length {length}.00" in printed("eval", run, "--best", "--episodes", "3")
    assert "a batch, which draws nothing; returns " in printed("play", run, "--best", "--episodes", "2")
    assert "is a batch, which draws nothing" in refused("play", run, "--best", "--video", tmp_path / "x.gif")
    assert f"{3 * length} transitions of 3 episodes" in printed(
        "record", run, "--best", "--episodes", "3", "--out", demos
    )
    assert "policy.pt2: env step 70; differs by at most" in printed("export", run, "--best", "--torch", file)
    (inputs,) = json.loads(contract_path(file).read_text())["inputs"]
    assert (inputs["low"], inputs["units"]) == ([None] * vector.spec.obs_dim, None)
