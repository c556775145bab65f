"""A new algorithm touches the five places that CONTRIBUTING.md lists, and then trains; shown with DDPG."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
UPDATE_RULE = '''
"""DDPG (arXiv:1509.02971): TD3 that believes its first critic alone, and does not smooth the target policy."""

from offpolicy.algos.learner import MetricSums
from offpolicy.algos.losses import td_target
from offpolicy.algos.td3 import METRICS as TD3_METRICS
from offpolicy.algos.td3 import Td3

METRICS = TD3_METRICS | {"actor": ("actor_loss", "saturation")}


class Ddpg(Td3):
    def __init__(self, algo, spec, device, seed, exchange):
        super().__init__(algo, spec, device, seed, exchange)
        self.metrics = MetricSums(METRICS, device)

    def target_q(self, batch):
        next_action = self.target_actor.module.forward(batch.next_obs)
        next_value = self.target_critic.module.q1(batch.next_obs, next_action)
        return td_target(batch.reward, batch.discount, batch.terminated, next_value)

    def update_once(self, batch, *, has_actor_step):
        measured = super().update_once(batch, has_actor_step=has_actor_step)
        if has_actor_step:
            is_saturated = self.actor.forward(batch.obs).detach().abs() > 0.99
            measured["actor"] += (is_saturated.float().mean(),)
        return measured
'''
NEW_FILES = {"offpolicy/algos/ddpg.py": UPDATE_RULE, "conf/algo/ddpg.yaml": "name: ddpg\nexploration_noise: 0.2\n"}
EDITS = (  # file, what is replaced, which occurs once, and by what
    (
        "offpolicy/algos/registry.py",
        ("import Td3\n", "import Td3\nfrom offpolicy.algos.ddpg import Ddpg\n"),
        ("    APPO,\n", "    APPO,\n    DDPG,\n"),
        ("TD3: Td3, ", "TD3: Td3, DDPG: Ddpg, "),
    ),
    (
        "offpolicy/config/algorithms.py",
        (
            "\nALGORITHMS = (",
            '\nDDPG = AlgorithmInfo("ddpg", PolicyKind.DETERMINISTIC, ("saturation",))\nALGORITHMS = (DDPG, ',
        ),
        ('[-1, 1] space", ge=0.0, needs="algo=td3"\n', '[-1, 1] space", ge=0.0, needs="algo=td3,ddpg"\n'),
    ),
    (
        "offpolicy/logger/metrics.toml",
        ("\nactor_loss = {", '\nsaturation = { unit = "fraction", help = "Share at the bounds." }\nactor_loss = {'),
    ),
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the product with the new algorithm."""
    for name in ("offpolicy", "runners", "conf"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in NEW_FILES.items():
        (tmp_path / path).write_text(text)
    for path, *replacements in EDITS:
        text = (tmp_path / path).read_text()
        for old, new in replacements:
            assert text.count(old) == 1, (path, old)
            text = text.replace(old, new)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.mark.slow
def test_a_new_algorithm_trains_after_five_edits(checkout: Path) -> None:
    options = ["total_timesteps=300", "algo.learning_starts=200", "eval.episodes=1", "threads.learner=1", "run_dir=run"]
    done = subprocess.run(
        [sys.executable, "-m", "offpolicy.cli", "train", "algo=ddpg", "env=pendulum", *options],
        cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = (json.loads(line) for line in (checkout / "run/metrics.jsonl").read_text().splitlines())
    assert last["train/n_updates"] == 100
    assert 0.0 <= last["train/saturation"] <= 1.0
    assert last["perf/flops_per_sec"] > 0.0


def test_the_guide_lists_the_places() -> None:
    guide = (REPOSITORY / "CONTRIBUTING.md").read_text()
    steps = guide[guide.index("**an algorithm**") : guide.index("**a runner**")]
    places = [path.replace("ddpg", "xyz") for path in (*NEW_FILES, *(path for path, *_ in EDITS))]
    assert len(places) == 5
    assert [place for place in places if f"`{place}`" not in steps] == []
