"""Both formats decide as the module, for every kind of policy and for any number of rows."""

from __future__ import annotations

import importlib.util
import io
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from offpolicy.errors import ConfigError, SaveError
from offpolicy.export.formats import Runner, onnx_runner, require_onnx, write_onnx, write_torch
from offpolicy.export.parity import LIMIT, difference, inputs_of
from tests.unit.export.conftest import KINDS, MakeScene, Scene


def worst(scene: Scene, run: Runner) -> float:
    """The largest difference over batches of 1, 2 and 10,000 rows."""
    rng = np.random.default_rng(1)
    batches = [(2.0 * rng.standard_normal((n, scene.codec.spec.obs_dim))).astype(np.float32) for n in (1, 2, 10_000)]
    return max(difference(run, scene.module, scene.codec, scene.policy, obs) for obs in batches)


@pytest.mark.parametrize("kind", list(KINDS))
def test_onnx_decides_as_the_policy(kind: str, make_scene: MakeScene) -> None:
    scene, file = make_scene(kind), io.BytesIO()
    assert worst(scene, write_onnx(scene.module, file)) <= LIMIT
    model = onnx.load_from_string(file.getvalue())
    onnx.checker.check_model(model)
    assert [value.name for value in model.graph.input] == scene.module.input_names
    assert [value.name for value in model.graph.output] == scene.module.output_names
    dims = [value.type.tensor_type.shape.dim[0] for value in (*model.graph.input, *model.graph.output)]
    assert {dim.dim_param for dim in dims} == {"batch"}


@pytest.mark.parametrize("kind", ["sac", "appo_multidiscrete", "hora_student"])
def test_a_program_of_torch_decides_as_the_policy(kind: str, make_scene: MakeScene) -> None:
    scene, file = make_scene(kind), io.BytesIO()
    assert worst(scene, write_torch(scene.module, file)) <= LIMIT
    file.seek(0)
    program = torch.export.load(file).module()
    obs = np.zeros((3, scene.codec.spec.obs_dim), np.float32)
    found = program(*map(torch.from_numpy, inputs_of(scene.module.parts, obs).values()))
    assert len(found[0]) == 3


@pytest.mark.parametrize("content", [b"", b"no model"])
def test_bytes_that_are_no_model_are_refused(content: bytes) -> None:
    with pytest.raises(SaveError, match="onnxruntime refuses the file"):
        onnx_runner(content)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require_onnx("--onnx")

    def found(name: str, *rest: Any) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", found)
    with pytest.raises(ConfigError, match=r"--onnx: needs onnx, onnxscript, onnxruntime: pip install 'offpolicy\[ex"):
        require_onnx("--onnx")
    with pytest.raises(ConfigError, match="--policy: needs onnxruntime: pip"):
        require_onnx("--policy", "onnxruntime")
