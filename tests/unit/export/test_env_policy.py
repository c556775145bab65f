"""A policy in the environment's terms decides as the policy and the action map of the run do together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from offpolicy.algos.registry import make_policy
from offpolicy.config.overrides import load_config
from offpolicy.envs.spaces import action_map, describe, env_actions
from offpolicy.export.env_policy import EnvPolicy
from offpolicy.export.parity import inputs_of
from offpolicy.types import Float32
from tests.unit.export.conftest import FLAT, KINDS, ODD, MakeScene


def observed(rows: int, obs_dim: int) -> Float32:
    return (3.0 * np.random.default_rng(0).standard_normal((rows, obs_dim))).astype(np.float32)


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_actions_are_those_that_the_environment_gets_in_training(kind: str, make_scene: MakeScene) -> None:
    policy, codec, module = make_scene(kind)
    obs = observed(500, codec.spec.obs_dim)
    with torch.inference_mode():
        outputs = module(*map(torch.from_numpy, inputs_of(module, obs).values()))
        decided = policy.act(torch.from_numpy(obs)).numpy()
    expected = env_actions(codec, action_map(codec)(decided))
    np.testing.assert_array_equal(outputs[0].numpy(), expected)
    assert outputs[0].numpy().dtype == expected.dtype
    if codec.spec.choices:
        sizes = np.cumsum([0, *codec.spec.choices])
        for begin, end in zip(sizes, sizes[1:], strict=False):
            np.testing.assert_allclose(outputs[1][:, begin:end].sum(dim=1).numpy(), 1.0, atol=1e-6)


def test_batch_norm_of_an_exported_policy_does_not_depend_on_the_other_rows() -> None:
    """FlashSAC's: the statistics are those of training, not those of the rows."""
    codec = describe(FLAT, ODD, 200)
    policy = make_policy(load_config(["algo=flashsac", "algo.actor_width=8"]).algo, codec.spec).train()
    module = EnvPolicy(policy, codec)
    obs = torch.from_numpy(observed(20, codec.spec.obs_dim))
    (together,), (alone,) = module(obs), module(obs[:1])
    np.testing.assert_allclose(alone.numpy(), together[:1].numpy(), rtol=1e-5)
    assert not together.requires_grad


def test_a_part_that_the_actor_reads_is_an_input_by_name(make_scene: MakeScene) -> None:
    for kind, names in (
        ("sac", ["obs"]),
        ("hora_teacher", ["obs", "privileged"]),
        ("hora_student", ["obs", "proprio_hist"]),
        ("appo_group", ["proprio_hist"]),
        ("sac_group", ["privileged"]),
        ("flashsac_group", ["obs"]),
    ):
        module = make_scene(kind).module
        assert module.input_names == names
        assert [tuple(tensor.shape[1:]) for tensor in module.example(2)] == [part.shape for part in module.parts]
