"""Encoders of plug-ins: in front of every perceptron, on observations alone, without what collectors would not get."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.algos.registry import make_learner, make_policy
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.nets.critics import make_critic
from offpolicy.nets.mlp import EncodedInput
from offpolicy.nets.policy import Policy, flat_size, flatten_into, load_flat
from offpolicy.plugins import NETWORKS
from offpolicy.types import Batch, Batches, SpaceSpec
from tests.packages import make_package

TEXT = """
from dataclasses import dataclass
from offpolicy.config.extensions import NetworkConfig, NetworkInfo
from offpolicy.config.parsing import option
KINDS = ("good", "buffered", "narrow", "broken")
@dataclass(frozen=True, slots=True, kw_only=True)
class Options(NetworkConfig):
    kind: str = option("good", "which", choices=KINDS)
NET = NetworkInfo("encs_modules:make", Options)
"""
MODULES = """
import torch
class Good(torch.nn.Module):
    def __init__(self, obs_dim):
        super().__init__()
        self.out_dim = 5
        self.inner = torch.nn.Linear(obs_dim, 5)
    def forward(self, obs):
        return self.inner(obs).sin()
class Buffered(Good):
    def __init__(self, obs_dim):
        super().__init__(obs_dim)
        self.register_buffer("frequencies", torch.ones(3))
class Narrow(Good):
    def forward(self, obs):
        return super().forward(obs)[..., :2]
KINDS = {"good": Good, "buffered": Buffered, "narrow": Narrow}
def make(options, obs_dim):
    return KINDS[options.kind](obs_dim)
"""
SPEC = SpaceSpec(3, 2, (-1.0,) * 2, (1.0,) * 2)


@pytest.fixture(autouse=True)
def _packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_package(tmp_path, "encs", TEXT, {NETWORKS: "net = encs:NET"})
    (tmp_path / "encs_modules.py").write_text(MODULES)
    monkeypatch.syspath_prepend(str(tmp_path))


def run(kind: str = "good", **values: Any) -> RunConfig:
    runner = {"runner": {"name": "appo"}} if values.get("name") == "appo" else {}
    return RunConfig.from_mapping({"algo": {"network": {"name": "net", "kind": kind}, **values}, **runner})


def algo(kind: str = "good", **values: Any) -> Any:
    return run(kind, **values).algo


def policy(**values: Any) -> Policy:
    torch.manual_seed(1)
    return make_policy(algo(**values), SPEC)


def test_the_actor_and_each_critic_have_an_encoder_of_their_own() -> None:
    critic, actor = make_critic(algo(), SPEC), policy().actor
    encoders = [net[0] for net in (critic.first, critic.second, actor.body)]  # type: ignore[union-attr]
    assert all(isinstance(encoder, EncodedInput) for encoder in encoders)
    assert len({id(parameter) for encoder in encoders for parameter in encoder.parameters()}) == 6


@pytest.mark.parametrize("name", ["sac", "td3", "appo"])
def test_collectors_act_as_the_learner_does(name: str) -> None:
    learnt, theirs = policy(name=name), policy(name=name)
    with torch.no_grad():
        for parameter in learnt.actor.parameters():
            parameter.add_(0.1)
    flat, obs = np.zeros(flat_size(learnt), np.float32), torch.ones(4, 3)
    flatten_into(learnt, flat)
    assert not torch.equal(theirs.act(obs), learnt.act(obs))
    load_flat(theirs, flat)
    assert torch.equal(theirs.act(obs), learnt.act(obs))


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_an_update_moves_every_encoder(name: str) -> None:
    learner = make_learner(replace(algo(name=name), policy_delay=1), SPEC, torch.device("cpu"), seed=0)
    before = {
        key: tensor for key, tensor in learner.state().tensors.items() if "encoder" in key and "target" not in key
    }
    obs, column = torch.randn(8, 3), torch.ones(8)
    batch = Batch(obs, torch.rand(8, 2), column, obs + 1.0, torch.zeros(8), 0.99 * column)
    learner.update(Batches((batch,), fresh_obs=None))
    after = learner.state().tensors
    assert len(before) >= 6
    assert [key for key, tensor in before.items() if torch.equal(tensor, after[key])] == []


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("buffered", r"its encoder has buffers \(frequencies\), which no collector gets"),
        ("narrow", r"its encoder returns \[1, 2\], and its out_dim is 5"),
        ("broken", "its encoder failed: KeyError"),
    ],
)
def test_an_encoder_that_cannot_be_used_is_named(kind: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"encs 1.2 \(entry point offpolicy.networks: net = encs:NET\): {problem}"):
        policy(kind=kind)
