"""The fast kernels train what the textbook trains, and only where the textbook is what they were derived from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from offpolicy.algos import fast
from offpolicy.algos.digests import digests_of
from offpolicy.algos.learner import Learner
from offpolicy.algos.losses import sac_actor_loss
from offpolicy.algos.optim import SoloExchange
from offpolicy.algos.registry import make_learner
from offpolicy.algos.sac import Sac
from offpolicy.algos.td3 import Td3
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.nets.onednn import has_onednn
from offpolicy.types import Batch, Batches, SpaceSpec

REPOSITORY = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")
BOX = SpaceSpec(obs_dim=3, action_dim=2, action_low=(-1.0,) * 2, action_high=(1.0,) * 2)
DISCRETE = SpaceSpec(obs_dim=3, action_dim=1, action_low=(0.0,), action_high=(2.0,), num_actions=3)
RULES = {"sac": Sac, "td3": Td3}


def batch_of(seed: int, rows: int = 64) -> Batch:
    """Rows of BOX, of which one in four terminates."""
    generator = torch.Generator().manual_seed(seed)
    obs, action, reward, next_obs = (torch.randn((rows, n), generator=generator) for n in (3, 2, 1, 3))
    terminated = (torch.arange(rows) % 4 == 0).float()
    return Batch(obs, action.tanh(), reward[:, 0], next_obs, terminated, torch.full((rows,), 0.99))


def trained(rule: Any, bias: tuple[float, ...] = (), **algo: Any) -> dict[str, Tensor]:
    """The state after 20 updates of a rule; every fifth batch has fewer rows. `bias`: of the actor's output."""
    config = AlgoConfig(**{"hidden_dims": (16, 24), **algo})
    learner = Learner(rule(config, BOX, CPU, 3, SoloExchange()), config)
    if bias:
        learner.tensors()[f"policy.actor.body.{2 * len(config.hidden_dims)}.bias"].data.copy_(torch.tensor(bias))
    for seed in range(20):
        batch = batch_of(seed, 48 if seed % 5 == 4 else 64)
        learner.update(Batches((batch,), batch.obs))
    assert not learner.has_diverged()
    return learner.state().tensors


def assert_same(name: str, **algo: Any) -> None:
    """Weights, targets and moments of Adam to 1e-5, with the same random numbers drawn.

    The rules are made here and not by `algo.kernels`: this says whether digests of changed modules may be renewed.
    """
    textbook = trained(RULES[name], name=name, **algo)
    written = trained(fast.RULES[RULES[name]], name=name, **algo)
    assert torch.equal(textbook.pop("generator"), written.pop("generator"))
    torch.testing.assert_close(textbook.pop("metrics.sums"), written.pop("metrics.sums"), rtol=1e-5, atol=1e-3)
    for key, tensor in textbook.items():
        torch.testing.assert_close(written[key], tensor, rtol=0.0, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}")  # type: ignore[misc]


def test_fast_and_textbook_train_the_same() -> None:
    for activation in ("relu", "tanh", "elu"):
        for name, policy_delay in (("sac", 1), ("sac", 2), ("td3", 2)):
            assert_same(name, activation=activation, policy_delay=policy_delay)
    for name in RULES:
        assert_same(name, max_grad_norm=0.1, normalize_obs=True, tau=0.1, hidden_dims=(24,))
    assert_same("sac", auto_alpha=False, init_alpha=0.3)
    assert_same("sac", bias=(8.0, -0.5, 3.0, -25.0))  # saturated, and both log stds beyond their bounds


def test_fast_and_textbook_train_the_same_with_two_threads() -> None:
    torch.set_num_threads(2)
    for name in RULES:
        assert_same(name, hidden_dims=(96, 96))


@pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN for float32")
def test_fast_and_textbook_train_the_same_with_the_products_of_onednn() -> None:
    for name in RULES:
        assert_same(name, hidden_dims=(128, 128), products="onednn")


def test_the_digests_are_those_of_the_modules() -> None:
    found = dict(sorted({**digests_of("offpolicy.algos.sac"), **digests_of("offpolicy.algos.td3")}.items()))
    lines = "\n".join(f'    "{name}": "{digest}",' for name, digest in found.items())
    assert dict(fast.DIGESTS) == found, (
        "a module that the fast kernels were derived from has changed. Make test_fast_and_textbook_train_the_same pass,"
        f" with a case of what is new; then DIGESTS of offpolicy/algos/fast.py is:\n{lines}"
    )


class Regularised(Sac):
    """SAC with another term in the actor's loss."""

    weight = 0.1

    def actor_loss(self, batch: Batch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        action, log_prob = self.sample(batch.obs)
        loss = sac_actor_loss(self.actor_q(batch.obs, action), log_prob, alpha)
        return loss + self.weight * log_prob.square().mean(), -log_prob.mean()


class Unchanged(Regularised):
    weight = 0.0


def test_a_loss_that_a_subclass_overrides_is_trained() -> None:
    assert fast.why_not(Regularised, AlgoConfig(name="sac"), BOX, CPU) != ""
    plain, same, other = (trained(rule, name="sac") for rule in (Sac, Unchanged, Regularised))
    assert all(torch.equal(tensor, same[key]) for key, tensor in plain.items())
    for key in ("policy.actor.body.0.weight", "policy.actor.body.4.bias"):
        assert float((plain[key] - other[key]).abs().max()) > 3e-4


def test_fast_kernels_are_refused_where_there_are_none_and_auto_is_the_textbook() -> None:
    cases: list[tuple[dict[str, Any], SpaceSpec, str]] = [
        ({"name": "sac", "activation": "silu"}, BOX, "algo.activation=silu"),
        ({"name": "td3", "critic_layer_norm": True}, BOX, "algo.critic_layer_norm=true"),
        ({"name": "sac"}, DISCRETE, "discrete actions"),
        ({"name": "flashsac"}, BOX, "algo=flashsac"),
    ]
    for options, spec, reason in cases:
        algo = RunConfig.from_mapping({"algo": options}).algo
        learner = make_learner(algo, spec, CPU, seed=0)
        has_choice = algo.name in ("sac", "td3")
        assert (learner.kernels, learner.why_textbook) == ("textbook", reason if has_choice else "")
        object.__setattr__(algo, "kernels", "fast")  # the configuration alone refuses most of them
        with pytest.raises(ConfigError, match=f"algo.kernels: got fast, allowed auto or textbook with {reason}"):
            make_learner(algo, spec, CPU, seed=0)
    with pytest.raises(ConfigError, match="allowed auto or textbook with device=cuda"):
        make_learner(AlgoConfig(name="sac", kernels="fast"), BOX, torch.device("cuda", 0), seed=0)


@pytest.mark.parametrize("name", RULES)
def test_the_standard_case_is_fast_unless_it_is_asked_for_the_textbook(name: str) -> None:
    for kernels, expected in (("auto", "fast"), ("fast", "fast"), ("textbook", "textbook")):
        learner = make_learner(AlgoConfig(name=name, kernels=kernels), BOX, CPU, seed=0)
        assert learner.kernels == expected
        assert type(learner.rule) is (RULES[name] if expected == "textbook" else fast.RULES[RULES[name]])
