"""The batch of point masses with a state that can be saved."""

from __future__ import annotations

from typing import Any

import torch

from offpolicy.envs.batch import BatchStep
from offpolicy.envs.toy_batch import PointMasses


class SavedMasses(PointMasses):
    def get_state(self) -> dict[str, Any]:
        generator = self._generator.get_state().numpy()
        return {"state": self._state.numpy(), "steps": self._steps.numpy(), "generator": generator}

    def set_state(self, state: dict[str, Any]) -> None:
        self._state, self._steps = (torch.from_numpy(state[name].copy()) for name in ("state", "steps"))
        self._generator.set_state(torch.from_numpy(state["generator"].copy()))


class Breaking(PointMasses):
    """Environment 3 leaves the numbers after its tenth step, until it is reset."""

    takes_ids = True

    def step(self, actions: Any) -> BatchStep:
        self.num_steps = getattr(self, "num_steps", 0) + 1
        if self.num_steps == 10:
            self._state[3] = torch.nan
        return super().step(actions)

    def reset(self, ids: Any = None, seeds: Any = None) -> Any:
        if ids is None:
            return super().reset(ids, seeds)
        self._state[ids] = self._first()[ids]
        self._steps[ids] = 0
        return self._state


class BreakingTogether(Breaking):
    takes_ids = False
