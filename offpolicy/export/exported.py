"""An exported ONNX policy in the place of a checkpoint: `offpolicy play RUN --policy FILE`, `offpolicy eval ...`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from offpolicy.collect.evaluation import Actor
from offpolicy.errors import ConfigError, SaveError
from offpolicy.export.contract import read_contract
from offpolicy.export.env_policy import ACTION, Part
from offpolicy.export.formats import Runner, onnx_runner, require_onnx
from offpolicy.export.parity import inputs_of
from offpolicy.types import OBS, Float32, Float64, SpaceSpec

SUFFIX = ".onnx"


@dataclass(frozen=True, slots=True)
class ExportedPolicy:
    """A file that decides, and the spaces of the environment that it was made for."""

    path: Path
    env_steps: int  # of the checkpoint that it was made from
    contract: Mapping[str, Any]  # Any: JSON data
    spec: SpaceSpec
    _run: Runner

    @classmethod
    def open(cls, path: Path, spec: SpaceSpec) -> ExportedPolicy:
        """Reads a file and the contract beside it. Raises `ConfigError` where they do not fit the spaces of a run."""
        if path.suffix != SUFFIX:
            raise ConfigError(f"--policy: got {str(path)!r}, allowed a file ending in {SUFFIX}, of offpolicy export")
        require_onnx("--policy", "onnxruntime")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"--policy: {path} cannot be read: {error.strerror}") from None
        contract = read_contract(path, content)
        if problems := _misfits(contract, spec):
            raise ConfigError([f"--policy: {path}: {problem}" for problem in problems])
        try:
            run = onnx_runner(content)
        except SaveError as error:
            raise ConfigError(f"--policy: {path}: {error}") from None
        return cls(path, contract["checkpoint"]["env_steps"], contract, spec, run)

    def actor(self) -> Actor:
        """Returns the policy as evaluations call it: flattened observations [N, O] to actions [N, A] of [-1, 1].

        The file gives actions in the environment's units. They are mapped back in float64, so that the environment gets
        the very numbers of the file again.
        """
        shapes = {one["name"]: tuple(one["shape"][1:]) for one in self.contract["inputs"]}
        parts = tuple(part._replace(shape=shapes[part.name]) for part in _parts(self.spec) if part.name in shapes)
        low, high = np.asarray(self.spec.action_low), np.asarray(self.spec.action_high)
        half = np.where(high > low, (high - low) / 2.0, np.inf)

        def act(obs: Float32) -> Float32:
            action: Float64 = self._run(inputs_of(parts, obs))[ACTION].reshape(len(obs), -1).astype(np.float64)
            own: Float64 = action - low if self.spec.choices else (action - (high + low) / 2.0) / half
            return cast(Float32, own)

        return act


def _parts(spec: SpaceSpec) -> tuple[Part, ...]:
    """Returns the parts of the observation, as `env_policy` names them; a Box is flat here."""
    if not spec.obs_keys:
        return (Part(OBS, (spec.obs_dim,), spec.obs_dim, 0),)
    columns = {key: spec.columns(key) for key in spec.obs_keys}
    return tuple(Part(key, spec.shape_of(key), part.stop - part.start, part.start) for key, part in columns.items())


def _misfits(contract: Mapping[str, Any], spec: SpaceSpec) -> list[str]:
    """Returns why a contract is not one of these spaces."""
    sizes = {part.name: part.size for part in _parts(spec)}
    problems = [
        f"input {one['name']} has {_size(one)} numbers, the run's observation {sizes.get(one['name'], 'no such part')}"
        for one in contract["inputs"]
        if sizes.get(one["name"]) != _size(one)
    ]
    action: Mapping[str, Any] = next((one for one in contract["outputs"] if one["name"] == ACTION), {})
    bounds = (action.get("low"), action.get("high"))
    own = (list(spec.action_low), list(spec.action_high))
    if bounds != own:
        return [*problems, f"action in {bounds}, the run's environment takes {own}"]
    shape = action.get("shape", [])[1:]
    if spec.action_shape is not None and shape != list(spec.action_shape):
        return [*problems, f"action of shape {shape}, the run's environment takes {list(spec.action_shape)}"]
    return problems


def _size(port: Mapping[str, Any]) -> int:
    return int(np.prod(port["shape"][1:], dtype=int))
