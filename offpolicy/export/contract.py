"""`<name>_contract.json` beside an exported policy: what goes in, what comes out, and what it was made of."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from offpolicy.envs.batch import Batch
from offpolicy.envs.make import Env
from offpolicy.envs.spaces import Codec
from offpolicy.export.env_policy import ACTION, BATCH, PROBABILITY, EnvPolicy, name_of

FORMAT = 1  # version of the contract
PACKAGES = ("offpolicy", "torch", "gymnasium", "mujoco", "numpy", "onnx", "onnxscript", "onnxruntime")
# Units of Gymnasium's own tasks, from their documentation; an environment may say its own in `metadata["units"]`.
UNITS: Mapping[str, Mapping[str, list[str]]] = {
    "Pendulum-v1": {"obs": ["1 (cosine)", "1 (sine)", "rad/s"], "action": ["N m"]},
    "CartPole-v1": {"obs": ["m", "m/s", "rad", "rad/s"], "action": ["1 (0: left, 1: right)"]},
    "MountainCarContinuous-v0": {"obs": ["1 (position)", "1 (velocity)"], "action": ["1 (force)"]},
}


def contract_path(file: Path) -> Path:
    """Returns the contract's file for that of a policy: `policy.onnx` has `policy_contract.json`."""
    return file.with_name(f"{file.stem}_contract.json")


def describe_ports(module: EnvPolicy, codec: Codec, env: Env | Batch, env_id: str) -> dict[str, Any]:
    """Returns inputs, their bounds row-major, outputs and what the policy does not read, as JSON data."""
    own = env.metadata.get("units") if isinstance(env, gymnasium.Env) else None  # a batch says none
    units = {**UNITS.get(env_id, {}), **(json_value(own) if isinstance(own, Mapping) else {})}
    inputs = []
    for name, part in zip(module.input_names, module.parts, strict=True):
        space: Any = env.observation_space  # Any: a Box, or a Dict of them
        for key in part.path:
            space = space[key]
        port = {"name": name, "dtype": "float32", "shape": [BATCH, *part.shape], "env_dtype": part.dtype}
        inputs.append({**port, "low": _finite(space.low), "high": _finite(space.high), "units": units.get(name)})
    spec = codec.spec
    dtype = "int64" if spec.choices else codec.action_dtype
    action = {"name": ACTION, "dtype": dtype, "shape": [BATCH, *codec.action_shape]}
    bounds = {"low": list(spec.action_low), "high": list(spec.action_high)}
    outputs: list[dict[str, Any]] = [{**action, **bounds, "units": units.get(ACTION)}]
    if spec.choices:
        shape = [BATCH, sum(spec.choices)]
        chances = {"name": PROBABILITY, "dtype": "float32", "shape": shape, "low": 0.0, "high": 1.0, "units": "1"}
        outputs.append({**chances, "choices": list(spec.choices)})
    # MuJoCo's tasks and some of classic control say it.
    step_s = getattr(env.unwrapped, "dt", None) if isinstance(env, gymnasium.Env) else None
    return {
        "inputs": inputs,
        "outputs": outputs,
        "unread": [name for leaf in codec.leaves if (name := name_of(leaf)) not in module.input_names],
        "step_s": float(step_s) if isinstance(step_s, int | float) and math.isfinite(step_s) else None,
    }


def json_value(value: Any) -> Any:  # Any: an argument of the environment, and JSON data
    """Returns a value as JSON has it: Infinity, -Infinity and NaN, which JSON has not, and others as text."""
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def versions() -> dict[str, str]:
    """Returns the versions of the packages that made the file."""
    return {name: importlib.metadata.version(name) for name in PACKAGES if importlib.util.find_spec(name)}


def digest(content: bytes) -> str:
    """Returns the SHA-256 of a file's bytes."""
    return hashlib.sha256(content).hexdigest()


def _finite(bounds: Any) -> list[float | None]:
    """Returns bounds, null where there is none."""
    return [float(bound) if math.isfinite(bound) else None for bound in np.ravel(bounds).tolist()]
