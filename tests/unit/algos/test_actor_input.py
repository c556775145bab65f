"""With `algo.actor_input` an actor reads one group of a Dict observation, and the critics read all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from offpolicy.algos.learner import Learner
from offpolicy.algos.registry import make_learner
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.types import Batch, Batches, Rollouts, SpaceSpec

RolloutsOf = Callable[..., Rollouts]

GROUPS = SpaceSpec(6, 2, (-1.0,) * 2, (1.0,) * 2, obs_keys=("a", "actor", "z"), obs_shapes=((2,), (3,), (1,)))
DISCRETE = replace(GROUPS, action_dim=1, action_low=(0.0,), action_high=(3.0,), num_actions=4)
READ, OTHERS = slice(2, 5), [0, 1, 5]  # columns of the group `actor`, and of the others
SMALL: dict[str, Any] = {"hidden_dims": (16, 16), "actor_width": 8, "critic_width": 8, "normalize_obs": True}
CASES: dict[str, tuple[SpaceSpec, dict[str, Any]]] = {
    "sac": (GROUPS, {"name": "sac", "kernels": "textbook"}),
    "sac_fast": (GROUPS, {"name": "sac", "kernels": "fast"}), "sac_discrete": (DISCRETE, {"name": "sac"}),
    "td3": (GROUPS, {"name": "td3", "kernels": "textbook"}),
    "td3_fast": (GROUPS, {"name": "td3", "kernels": "fast"}), "flashsac": (GROUPS, {"name": "flashsac"}),
    "appo": (GROUPS, {"name": "appo", "epochs": 1, "num_minibatches": 1}),
}  # fmt: skip
every_algorithm = pytest.mark.parametrize("case", CASES)


def learner_of(case: str, seed: int = 1, actor_input: str = "actor") -> Learner:
    spec, algo = CASES[case]
    return make_learner(AlgoConfig(**{**SMALL, **algo, "actor_input": actor_input}), spec, torch.device("cpu"), seed)


def rows_of(case: str, learner: Learner, seed: int, rollouts_of: RolloutsOf) -> Batches | Rollouts:
    """What one update of the algorithm consumes."""
    spec, algo = CASES[case]
    if algo["name"] == "appo":
        return rollouts_of(learner.policy, seed, spec=spec)
    generator = torch.Generator().manual_seed(seed)
    obs, action, reward, next_obs = (torch.randn((32, n), generator=generator) for n in (6, 2, 1, 6))
    action = torch.randint(4, (32, 1), generator=generator).float() if spec.num_actions else action.tanh()
    batch = Batch(obs, action, reward[:, 0], next_obs, torch.zeros(32), torch.full((32,), 0.99))
    return Batches((batch,), obs)


def by_its_name(name: str) -> str:
    """The name of a tensor of the actor that reads all, in which no columns are taken before the first layer."""
    return re.sub(r"(actor\S*body\.)(\d+)", lambda found: f"{found[1]}{int(found[2]) - 1}", name)


@every_algorithm
def test_an_update_is_that_of_an_actor_that_reads_all_with_weights_of_0_for_other_groups(
    case: str, rollouts_of: RolloutsOf
) -> None:
    """Those weights are set to 0 again after every update. Critics, targets, temperature and moments are the same."""
    learner, by_hand = learner_of(case), learner_of(case, seed=2, actor_input="all")
    narrow, wide = learner.tensors(), by_hand.tensors()
    pairs = {name: (tensor, wide[by_its_name(name)]) for name, tensor in narrow.items()}
    by_hand.generator.set_state(learner.generator.get_state())
    with torch.no_grad():
        for mine, its in pairs.values():
            its.zero_()
            (its[..., READ] if its.shape != mine.shape else its).copy_(mine)
    of_group = [name for name, (mine, its) in pairs.items() if mine.shape != its.shape]
    assert any(name.startswith("policy.actor.body.") for name in of_group)
    for seed in range(5):
        rows = rows_of(case, learner, seed, rollouts_of)
        learner.update(rows)
        by_hand.update(rows)
        for name in of_group:
            if "actor.body." in name and "exp_avg" not in name:
                pairs[name][1].data[..., OTHERS] = 0.0
    for name, (mine, its) in pairs.items():
        expected = its[..., READ] if name in of_group else its
        torch.testing.assert_close(mine, expected, rtol=0.0, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")  # type: ignore[misc]


@every_algorithm
def test_a_policy_decides_by_its_group_alone(case: str, rollouts_of: RolloutsOf) -> None:
    learner = learner_of(case)
    learner.update(rows_of(case, learner, 0, rollouts_of))
    one = torch.randn(200, 6, generator=torch.Generator().manual_seed(3))
    other = one.clone()
    other[:, OTHERS] += 1.0
    moved = one.clone()
    moved[:, READ] += 5.0
    generator = torch.Generator()
    drawn = [learner.policy.sample(obs, generator.manual_seed(0))[0] for obs in (one, other)]
    assert torch.equal(learner.policy.act(one), learner.policy.act(other))
    assert torch.equal(*drawn)
    assert not torch.equal(learner.policy.act(one), learner.policy.act(moved))
