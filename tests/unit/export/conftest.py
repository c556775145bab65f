"""Policies of every kind with the layout of their environment, all with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces

from offpolicy.algos.registry import make_policy
from offpolicy.config.overrides import load_config
from offpolicy.envs.spaces import Codec, describe
from offpolicy.export.env_policy import EnvPolicy
from offpolicy.nets.policy import Policy

FLAT = spaces.Box(-1.0, 1.0, (3,), np.float32)
SQUARE = spaces.Box(-1.0, 1.0, (2, 3), np.float64)
GROUPS = spaces.Dict(
    {
        "obs": spaces.Box(-1.0, 1.0, (5,), np.float32),
        "privileged": spaces.Box(-1.0, 1.0, (2,), np.float32),
        "proprio_hist": spaces.Box(-1.0, 1.0, (30, 4), np.float32),
    }
)
ODD = spaces.Box(np.array([-0.1, 0.0, 3.0], np.float32), np.array([0.3, 40.0, 3.0], np.float32), dtype=np.float32)
SMALL = ("algo.hidden_dims=[16,16]", "algo.normalize_obs=true")
HORA = ("algo=hora", "algo.encoder_dims=[8]", "algo.latent_dim=3")
KINDS: dict[str, tuple[tuple[str, ...], spaces.Space, spaces.Space]] = {
    "sac": (("algo=sac",), FLAT, ODD),
    "sac_float64_matrix": (("algo=sac",), SQUARE, spaces.Box(-2.0, 3.0, (2, 2), np.float64)),
    "sac_float16": (("algo=sac",), FLAT, spaces.Box(-2.0, 3.0, (2,), np.float16)),
    "sac_discrete": (("algo=sac",), FLAT, spaces.Discrete(3, start=4)),
    "td3": (("algo=td3",), FLAT, ODD),
    "appo": (("algo=appo",), FLAT, ODD),
    "appo_discrete": (("algo=appo",), FLAT, spaces.Discrete(2)),
    "appo_multidiscrete": (("algo=appo",), FLAT, spaces.MultiDiscrete([3, 2], start=[0, 5])),
    "hora_teacher": (HORA, GROUPS, ODD),
    "hora_student": ((*HORA, "stage=adapt", "teacher=x"), GROUPS, ODD),
    "sac_group": (("algo=sac", "algo.actor_input=privileged"), GROUPS, ODD),
    "flashsac_group": (("algo=flashsac", "algo.actor_width=8", "algo.actor_input=obs"), GROUPS, ODD),
    "appo_group": (("algo=appo", "algo.actor_input=history"), GROUPS, ODD),
    "appo_group_discrete": (("algo=appo", "algo.actor_input=obs"), GROUPS, spaces.Discrete(4)),
    "hora_student_discrete": ((*HORA, "stage=adapt", "teacher=x"), GROUPS, spaces.Discrete(4)),
}


class Scene(NamedTuple):
    """A policy and how its environment is laid out."""

    policy: Policy
    codec: Codec
    module: EnvPolicy


MakeScene = Callable[[str], Scene]


@pytest.fixture
def make_scene() -> MakeScene:
    """`make_scene(kind)`, of `KINDS`."""

    def make(kind: str) -> Scene:
        words, observed, acted = KINDS[kind]
        codec = describe(observed, acted, 200)
        torch.manual_seed(1)
        policy = make_policy(load_config([*words, *SMALL]).algo, codec.spec).eval()
        with torch.no_grad():
            for parameter in policy.parameters():  # APPO's first policy hardly depends on what it sees
                parameter.normal_(0.0, 1.5 * parameter[0].numel() ** -0.5)
        assert policy.normalizer is not None
        policy.normalizer.mean.normal_()
        policy.normalizer.var.uniform_(0.5, 2.0)
        return Scene(policy, codec, EnvPolicy(policy, codec))

    return make
