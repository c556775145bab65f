"""An exported file in the place of a checkpoint: the environment gets its very numbers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.envs.spaces import action_map
from offpolicy.errors import ConfigError
from offpolicy.export.contract import FORMAT, contract_path, digest
from offpolicy.export.exported import ExportedPolicy
from offpolicy.export.formats import onnx_runner, write_onnx
from offpolicy.export.parity import inputs_of
from tests.unit.export.conftest import MakeScene, Scene


def exported(scene: Scene, path: Path) -> Path:
    with path.open("wb") as file:
        write_onnx(scene.module, file)
    spec = scene.codec.spec
    contract: dict[str, Any] = {
        "format": FORMAT,
        "files": {path.name: {"sha256": digest(path.read_bytes())}},
        "checkpoint": {"env_steps": 300},
        "inputs": [{"name": part.name, "shape": ["batch", *part.shape]} for part in scene.module.parts],
        "outputs": [
            {
                "name": "action",
                "shape": ["batch", *scene.codec.action_shape],
                "low": list(spec.action_low),
                "high": list(spec.action_high),
            }
        ],
    }
    contract_path(path).write_text(json.dumps(contract))
    return path


@pytest.mark.parametrize("kind", ["sac_float64_matrix", "hora_student"])
def test_the_environment_gets_the_numbers_of_the_file(kind: str, make_scene: MakeScene, tmp_path: Path) -> None:
    scene = make_scene(kind)
    file = exported(scene, tmp_path / "policy.onnx")
    policy = ExportedPolicy.open(file, scene.codec.spec)
    assert policy.env_steps == 300
    obs = np.random.default_rng(5).standard_normal((200, scene.codec.spec.obs_dim)).astype(np.float32)
    given = action_map(scene.codec).apply(policy.actor()(obs))
    own = onnx_runner(file.read_bytes())(inputs_of(scene.module.parts, obs))["action"]
    np.testing.assert_array_equal(given.reshape(own.shape), own)


def test_another_shape_of_as_many_actions_is_refused(make_scene: MakeScene, tmp_path: Path) -> None:
    scene = make_scene("sac_float64_matrix")
    file = exported(scene, tmp_path / "policy.onnx")
    turned = dataclasses.replace(scene.codec.spec, action_shape=(4,))
    with pytest.raises(ConfigError, match=r"action of shape \[2, 2\], the run's environment takes \[4\]"):
        ExportedPolicy.open(file, turned)
    ExportedPolicy.open(file, dataclasses.replace(turned, action_shape=None))  # of a run before the field


def test_a_run_with_other_spaces_is_refused_by_name(make_scene: MakeScene, tmp_path: Path) -> None:
    scene = make_scene("td3")
    file = exported(scene, tmp_path / "policy.onnx")
    spec = dataclasses.replace(scene.codec.spec, obs_dim=4, action_high=(9.0, 9.0, 9.0))
    with pytest.raises(ConfigError) as caught:
        ExportedPolicy.open(file, spec)
    shape, bounds = caught.value.problems
    assert shape.endswith("input obs has 3 numbers, the run's observation 4")
    assert "the run's environment takes" in bounds


def test_only_onnx_files_that_can_be_read_are_run(make_scene: MakeScene, tmp_path: Path) -> None:
    spec = make_scene("td3").codec.spec
    with pytest.raises(ConfigError, match=r"--policy: got .*\.pt2', allowed a file ending in \.onnx"):
        ExportedPolicy.open(tmp_path / "policy.pt2", spec)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        ExportedPolicy.open(tmp_path / "policy.onnx", spec)
