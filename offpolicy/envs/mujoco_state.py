"""MuJoCo's data as plain data and back, exactly, and a fingerprint of its models.

`mjSTATE_INTEGRATION` determines the next `mj_step`. But environments also read derived quantities before they step
(Humanoid: the centre of mass; Ant: contact forces), which are one substep behind the positions: they are saved too and
written over what `mj_forward` computes. Contacts and constraints (`data.contact`, `efc_*`) are not: a restored
environment that reads them before it steps sees those of the restored positions.
"""

from __future__ import annotations

import hashlib
import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_mujoco(value: Any, name: str) -> bool:
    """True for an object of MuJoCo's class `name`, such as MjModel, without importing MuJoCo."""
    return type(value).__name__ == name and type(value).__module__.startswith("mujoco")


def model_digest(model: Any) -> str:
    """Returns a fingerprint of every number of a MuJoCo model."""
    mujoco = importlib.import_module("mujoco")
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.sha256(buffer.tobytes()).hexdigest()


def save_data(data: Any) -> dict[str, NDArray[Any]]:
    """Returns the integration state of MuJoCo data and its derived arrays, by name."""
    mujoco = importlib.import_module("mujoco")
    spec = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    state = np.empty(mujoco.mj_stateSize(data.model, spec), np.float64)
    mujoco.mj_getState(data.model, data, state, spec)
    return {"integration": state} | {name: array.copy() for name, array in _derived(data).items()}


def load_data(data: Any, saved: dict[str, NDArray[Any]]) -> None:
    """Restores what `save_data` returned for the same model."""
    mujoco = importlib.import_module("mujoco")
    mujoco.mj_resetData(data.model, data)
    mujoco.mj_setState(data.model, data, saved["integration"], int(mujoco.mjtState.mjSTATE_INTEGRATION))
    # Gives the arena (contacts, constraints) contents that fit the positions, for environments that look at it.
    mujoco.mj_forward(data.model, data)
    for name, array in _derived(data).items():
        array[...] = saved[name]


def _derived(data: Any) -> dict[str, NDArray[Any]]:
    """Returns views of the arrays in the data's main buffer, which starts with `qpos`: the model decides their sizes.

    The others lie in an arena (contacts, constraints, islands), and every step computes them again.
    """
    start = data.qpos.ctypes.data
    arrays = {}
    for name in dir(data):
        value = None if name.startswith("_") or name == "plugin_data" else getattr(data, name)
        if isinstance(value, np.ndarray) and value.size and start <= value.ctypes.data < start + data.nbuffer:
            arrays[name] = value
    return arrays
