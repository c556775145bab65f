"""N simulations of one MuJoCo model, stepped by the threads of `mujoco.batch`.

Derived fields (`xpos`, `cinert`, ...) are of the state before the last substep, as Gymnasium's environments read them.
Contact forces (`cfrc_ext`) come from `mj_rnePostConstraint` after a step, as in Gymnasium, on a whole `MjData`.
"""

# MuJoCo's names come from a compiled module, which pyright cannot read.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import ClassVar

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ids = NDArray[np.intp]

WARNINGS = tuple(name.removeprefix("mjWARN_") for name in list(mujoco.mjtWarning.__members__)[:-1])


def has_memory(model: mujoco.MjModel) -> bool:
    """True for a model with sleep or IPC, which MuJoCo keeps in `MjData` beside the state."""
    flags = mujoco.mjtEnableBit.mjENBL_SLEEP | mujoco.mjtEnableBit.mjENBL_IPC
    return bool(model.opt.enableflags & flags)


class Simulations:
    """The state and the derived fields of N simulations; arrays of the batch are live.

    With `has_contact_forces`, and for a model with sleep, IPC or engine plugins, each has its own `MjData`. Raises
    `SimulationError` where MuJoCo raises an error, and `ValueError` for a model that a batch refuses.
    """

    has_contact_forces: ClassVar[bool] = False  # `contact_forces` [N, bodies, 6] are kept
    num_substeps = 1  # of a step

    def __init__(self, model: mujoco.MjModel, num_envs: int, num_threads: int) -> None:
        self.model, self.num_envs = model, num_envs
        is_persistent = self.has_contact_forces or has_memory(model) or model.nplugin > 0
        self.batch = Batch(model, num_envs, min(num_threads, num_envs), persistent=is_persistent)
        self.qpos: Array = self.batch.bind("qpos")  # [N, nq]
        self.qvel: Array = self.batch.bind("qvel")  # [N, nv]
        self.ctrl: Array = self.batch.bind("ctrl")  # [N, A]
        self.contact_forces: Array = np.zeros((num_envs, model.nbody, 6) if self.has_contact_forces else (0, 0, 6))
        self._scratch = mujoco.MjData(model) if self.has_contact_forces else None
        self._num_warnings = np.zeros((num_envs, len(WARNINGS)), np.int32)

    def bind(self, field: str) -> Array:
        """Returns a derived field [N, ...], renewed by every call for the simulations of that call; read-only."""
        array: Array = self.batch.bind(field)
        return array

    def step(self, ids: Ids | None) -> None:
        """Advances the simulations `ids`, None for all, by `num_substeps` with the controls in `ctrl`."""
        self.batch.step(ids, nstep=self.num_substeps)
        if self._scratch is not None:
            for sim in range(self.num_envs) if ids is None else ids.tolist():
                self.batch.get_data(sim, self._scratch)
                mujoco.mj_rnePostConstraint(self.model, self._scratch)
                self.contact_forces[sim] = self._scratch.cfrc_ext

    def start(self, ids: Ids, qpos: Array, qvel: Array) -> None:
        """Resets the simulations `ids` to the model's defaults at `qpos` [n, nq], `qvel` [n, nv]."""
        self.batch.reset(ids, stage=mujoco.mjtStage.mjSTAGE_NONE)
        self.qpos[ids], self.qvel[ids] = qpos, qvel
        self.batch.forward(ids)
        self._num_warnings[ids] = 0
        if self._scratch is not None:
            for sim in ids.tolist():
                self.batch.get_data(sim, self._scratch)
                self.contact_forces[sim] = self._scratch.cfrc_ext

    def new_warnings(self) -> list[tuple[int, str]]:
        """Returns simulation and name of each of MuJoCo's warnings since the last call, such as (3, "BADQACC")."""
        numbers = self.batch.warning[:, :, 1]
        if (numbers == self._num_warnings).all():
            return []
        sims, kinds = np.nonzero(numbers > self._num_warnings)
        self._num_warnings[...] = numbers
        return [(sim, WARNINGS[kind]) for sim, kind in zip(sims.tolist(), kinds.tolist(), strict=True)]

    def get_state(self) -> Array:
        """Returns a copy of what determines the next step of every simulation (mjSTATE_INTEGRATION) [N, S].

        Raises `ValueError` for a model whose next step depends on more.
        """
        if has_memory(self.model):
            raise ValueError("a batch does not save which bodies sleep; env.vectorization=sync does")
        return np.array(self.batch.state)

    def set_state(self, state: Array) -> None:
        """Restores what `get_state` returned. Derived fields are renewed by the next step only."""
        self.batch.state[...] = state
