"""The edits of docs/extending.md: each trains what it says, by the textbook, and needs nothing beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from offpolicy.algos.registry import make_learner
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.types import Batch, Batches, SpaceSpec
from tests.documents import REPOSITORY, blocks

EDITS = [block.text for block in blocks((REPOSITORY / "docs/extending.md").read_text()) if block.language == "diff"]
SPEC = SpaceSpec(3, 1, (-1.0,), (1.0,), max_episode_steps=200)


def twenty_updates(kernels: str) -> tuple[str, str, list[float]]:
    """Makes 20 updates of SAC. Returns the kernels, why not fast ones, and the last weights of the actor."""
    obs, next_obs, reward = torch.randn(3, 256, 3, generator=torch.Generator().manual_seed(1)).unbind()
    batch = Batch(obs, obs[:, :1].tanh(), reward[:, 0], next_obs, torch.zeros(256), torch.full((256,), 0.99))
    learner = make_learner(AlgoConfig(kernels=kernels), SPEC, torch.device("cpu"), seed=1)
    learner.update(Batches((batch,) * 20, fresh_obs=None))
    *_, weight, _ = learner.policy.actor.parameters()
    return learner.kernels, learner.why_textbook, weight.flatten().tolist()


@pytest.fixture(scope="module")
def unchanged() -> list[float]:
    """The last weights of the actor where nothing was edited."""
    return twenty_updates("textbook")[2]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_the_page_is_what_is_trained(edit: str, unchanged: list[float], tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "offpolicy", tmp_path / "offpolicy", ignore=shutil.ignore_patterns("__pycache__"))
    module = apply(edit, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "tests.contracts.test_changing"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kernels, why_textbook, weights = json.loads(done.stdout)
    assert kernels == "textbook"
    assert why_textbook == f"{module}, which has changed since the fast kernels were derived from it"
    assert max(abs(one - other) for one, other in zip(weights, unchanged, strict=True)) > 1e-5


def apply(edit: str, checkout: Path) -> str:
    """Makes an edit of at most ten lines; returns the module that it is of."""
    header, *lines = edit.splitlines(keepends=True)
    assert len(lines) < 10
    name = header.removeprefix("--- ").strip()
    text = (checkout / name).read_text()
    for hunk in "".join(lines).split("@@\n"):
        old, new = ("".join(line[1:] for line in hunk.splitlines(True) if line[0] in kinds) for kinds in (" -", " +"))
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (checkout / name).write_text(text)
    return name.removesuffix(".py").replace("/", ".")


def test_the_page_has_three_edits() -> None:
    assert len(EDITS) == 3


if __name__ == "__main__":
    print(json.dumps(twenty_updates("auto")))
