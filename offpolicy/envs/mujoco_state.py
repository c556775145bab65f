"""MuJoCo's data as plain data and back, exactly, and a fingerprint of its models.

`mjSTATE_INTEGRATION` (time, positions, velocities, activations, warm start, controls, applied forces, ...) determines
the next `mj_step`. But environments also read derived quantities before they step (Humanoid: the centre of mass; Ant:
contact forces), and after a step those are one substep behind the positions, so recomputing them changes the result.
They are therefore saved too and written over what `mj_forward` computes. Contacts and constraints (`data.contact`,
`efc_*`) are not: a restored environment that reads them before it steps sees those of the restored positions.
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


def models_digest(models: list[Any]) -> str | None:
    """Returns a fingerprint of every number of some MuJoCo models, which shows any change; None without models."""
    if not models:
        return None
    mujoco = _mujoco()
    digest = hashlib.sha256()
    for model in models:
        buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
        mujoco.mj_saveModel(model, None, buffer)
        digest.update(buffer.tobytes())
    return digest.hexdigest()


def save_data(data: Any) -> dict[str, Any]:
    """Returns the integration state of MuJoCo data, and its derived arrays as one row of bytes with their names."""
    mujoco = _mujoco()
    spec = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    state = np.empty(mujoco.mj_stateSize(data.model, spec), np.float64)
    mujoco.mj_getState(data.model, data, state, spec)
    derived = _derived(data)
    packed = np.frombuffer(b"".join(array.tobytes() for array in derived.values()), np.uint8)
    return {"integration": state, "names": list(derived), "derived": packed.copy()}


def load_data(data: Any, saved: dict[str, Any]) -> None:
    """Restores what `save_data` returned. Raises `ValueError` if the arrays do not fit the model."""
    mujoco = _mujoco()
    derived = _derived(data)
    if saved["names"] != list(derived) or saved["derived"].size != sum(array.nbytes for array in derived.values()):
        raise ValueError("the MuJoCo data has other fields; was it saved by another version of mujoco?")
    mujoco.mj_resetData(data.model, data)
    mujoco.mj_setState(data.model, data, saved["integration"], int(mujoco.mjtState.mjSTATE_INTEGRATION))
    # Gives the arena (contacts, constraints) contents that fit the positions, for environments that look at it.
    mujoco.mj_forward(data.model, data)
    start = 0
    for array in derived.values():
        part = saved["derived"][start : start + array.nbytes]
        array[...] = part.view(array.dtype).reshape(array.shape)
        start += array.nbytes


def _mujoco() -> Any:  # Any: an extension module without type stubs
    """Returns the module, imported only when one of its environments is here."""
    return importlib.import_module("mujoco")


def _derived(data: Any) -> dict[str, NDArray[Any]]:
    """Returns views of the arrays in the data's main buffer, whose sizes the model alone decides.

    The others lie in an arena (contacts, constraints, islands): they change size at every step, and every step computes
    them again. The buffer starts with `qpos`.
    """
    start = data.qpos.ctypes.data
    arrays = {}
    for name in dir(data):
        value = None if name.startswith("_") or name == "plugin_data" else getattr(data, name)
        if isinstance(value, np.ndarray) and value.size and start <= value.ctypes.data < start + data.nbuffer:
            arrays[name] = value
    return arrays
