"""Both formats decide as the module, for every kind of policy and for any number of rows."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from gymnasium import spaces

from offpolicy.algos.registry import make_policy
from offpolicy.config.overrides import load_config
from offpolicy.envs.spaces import describe
from offpolicy.errors import ConfigError
from offpolicy.export.env_policy import EnvPolicy
from offpolicy.export.formats import Runner, check_names, write_onnx, write_torch
from offpolicy.export.parity import LIMIT, difference, inputs_of
from tests.unit.export.conftest import KINDS, ODD, MakeScene, Scene

USUAL = ("sac", "sac_group", "appo_multidiscrete", "hora_student")  # the others are nightly


def worst(scene: Scene, run: Runner) -> float:
    """The largest difference over batches of 1, 2 and 10,000 rows."""
    rng = np.random.default_rng(1)
    batches = [(2.0 * rng.standard_normal((n, scene.codec.spec.obs_dim))).astype(np.float32) for n in (1, 2, 10_000)]
    return max(difference(run, scene.module, scene.codec, scene.policy, obs) for obs in batches)


@pytest.mark.parametrize(
    "kind", [kind if kind in USUAL else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_onnx_decides_as_the_policy(kind: str, make_scene: MakeScene) -> None:
    scene, file = make_scene(kind), io.BytesIO()
    assert worst(scene, write_onnx(scene.module, file)) <= LIMIT
    model = onnx.load_from_string(file.getvalue())
    onnx.checker.check_model(model)
    assert [value.name for value in model.graph.input] == scene.module.input_names
    assert [value.name for value in model.graph.output] == scene.module.output_names
    dims = [value.type.tensor_type.shape.dim[0] for value in (*model.graph.input, *model.graph.output)]
    assert {dim.dim_param for dim in dims} == {"batch"}


@pytest.mark.parametrize("kind", USUAL)
def test_a_program_of_torch_decides_as_the_policy(kind: str, make_scene: MakeScene) -> None:
    scene, file = make_scene(kind), io.BytesIO()
    assert worst(scene, write_torch(scene.module, file)) <= LIMIT
    file.seek(0)
    program = torch.export.load(file).module()
    obs = np.zeros((3, scene.codec.spec.obs_dim), np.float32)
    found = program(*map(torch.from_numpy, inputs_of(scene.module, obs).values()))
    assert len(found[0]) == 3


@pytest.mark.parametrize(("acted", "refused"), [(spaces.Discrete(3), "probability"), (ODD, "action")])
def test_a_part_of_the_observation_named_like_an_output_is_refused(acted: spaces.Space[Any], refused: str) -> None:
    """The exporter ended in a traceback that said nothing of the key."""
    observed = spaces.Dict({name: spaces.Box(-1.0, 1.0, (2,), np.float32) for name in ("where", refused)})
    codec = describe(observed, acted, None)
    module = EnvPolicy(make_policy(load_config(["algo=sac", "algo.hidden_dims=[8]"]).algo, codec.spec), codec)
    with pytest.raises(ConfigError, match=rf"--onnx: the observation has a key '{refused}', which is the name of an"):
        check_names("--onnx", module)
    run = write_torch(module, io.BytesIO())
    assert run({name: np.zeros((3, 2), np.float32) for name in module.input_names})["action"].shape[0] == 3
