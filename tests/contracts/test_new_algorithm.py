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
"""DDPG (arXiv:1509.02971): one critic, a deterministic actor, targets for both."""

import torch

from offpolicy.algos.learner import MetricSums, Seeds, TensorGroups
from offpolicy.algos.learners import CriticTrainer
from offpolicy.algos.losses import td_target
from offpolicy.algos.optim import GuardedAdam, Loss, OptimizerStep, TargetNetwork
from offpolicy.nets.critics import make_critic
from offpolicy.nets.policy import make_policy

METRICS = {"critic": ("critic_loss", "q_mean", "target_q_mean"), "actor": ("actor_loss", "saturation")}


class Ddpg:
    def __init__(self, algo, spec, device, seed, exchange):
        seeds = Seeds(seed)
        with seeds.initial_weights():
            self.policy = make_policy(algo, spec).to(device)
            critic = make_critic(algo, spec).to(device)
        self.metrics = MetricSums(METRICS, device)
        self.optimizer_step = OptimizerStep(device, exchange)
        self.generator = seeds.generator(device)
        self._actor = self.policy.actor
        self._optimizer = GuardedAdam(dict(self._actor.named_parameters()), algo.actor_lr, self.optimizer_step.guard)
        self._target_actor = TargetNetwork(self._actor, algo.tau)
        self._critic = CriticTrainer(algo, critic, self.optimizer_step)

    def follow_schedules(self, env_steps):
        pass

    def update_once(self, batch, *, has_actor_step):
        with torch.no_grad():
            next_q = self._critic.target_q(batch.next_obs, self._target_actor.module.forward(batch.next_obs))[0]
            target_q = td_target(batch.reward, batch.discount, batch.terminated, next_q)
        measured = {"critic": self._critic.step(batch, target_q)}
        if not has_actor_step:
            return measured
        action = self._actor.forward(batch.obs)
        loss = -self._critic.online.q1(batch.obs, action).mean()
        self.optimizer_step.minimize(Loss(loss, self._optimizer))
        measured["actor"] = (loss.detach(), (action.detach().abs() > 0.99).float().mean())
        self._critic.target.follow()
        self._target_actor.follow()
        return measured

    def tensor_groups(self):
        modules = {"policy": self.policy, "target_actor": self._target_actor.module}
        modules |= {"critic": self._critic.online, "target_critic": self._critic.target.module}
        optimizers = {"actor_optimizer": self._optimizer, "critic_optimizer": self._critic.optimizer}
        return TensorGroups.of(modules, optimizers)

    def normalizers(self):
        return self.policy.named_normalizers()
'''
NEW_FILES = {"offpolicy/algos/ddpg.py": UPDATE_RULE, "conf/algo/ddpg.yaml": "name: ddpg\nexploration_noise: 0.2\n"}
EDITS = (  # file, what is replaced, which occurs once, and by what
    (
        "offpolicy/algos/registry.py",
        ("import Td3\n", "import Td3\nfrom offpolicy.algos.ddpg import Ddpg\n"),
        ("    APPO,\n", "    APPO,\n    DDPG,\n"),
        ("TD3: Td3}", "TD3: Td3, DDPG: Ddpg}"),
    ),
    (
        "offpolicy/config/sections.py",
        (
            "\nALGORITHMS = (",
            '\nDDPG = AlgorithmInfo("ddpg", PolicyKind.DETERMINISTIC, ("saturation",))\nALGORITHMS = (DDPG, ',
        ),
        ('"std of the action noise, in the [-1, 1] space", ge=0.0, only=(TD3,)', '"std", ge=0.0, only=(TD3, DDPG)'),
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
