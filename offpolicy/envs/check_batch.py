"""`check_batch(make)`: a batch of one's own, tried against the contract of `offpolicy.envs.batch`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from offpolicy.envs.batch import Batch, BatchStep, Obs
from offpolicy.envs.env_adapter import codec_of
from offpolicy.envs.spaces import bounded
from offpolicy.errors import EnvFailure

SEEDED_STEPS = 10  # vector steps of which the same seeds must give the same rows
Array = NDArray[Any]


def check_batch(
    make: Callable[[int], Any],  # Any: what is checked
    *,
    action_bounds: Sequence[float] | None = None,
    max_steps: int = 2000,
) -> None:
    """Raises `EnvFailure` that says what the contract asks for and what was found; `ConfigError` for other spaces.

    `make(num_envs)` returns a new batch: one of 1 and one of 3 are stepped with random actions until each environment
    has ended an episode, for `max_steps` at most, and are made a second time with the same seeds. `action_bounds` are
    those of `env.action_bounds`. Whether memory is used again by the next step is the batch's own affair.
    """
    for num_envs in (1, 3):
        with contextlib.closing(make(num_envs)) as batch:
            first = _Trial(batch, num_envs, action_bounds).rows(max_steps)
        with contextlib.closing(make(num_envs)) as batch:
            again = _Trial(batch, num_envs, action_bounds).rows(SEEDED_STEPS)
        for step, (row, other) in enumerate(zip(first, again, strict=False)):
            for name, values in row.items():
                is_same = np.allclose(values, other[name], rtol=1e-4, atol=1e-5, equal_nan=True)
                _ask(is_same, f"the same {name} from the same seeds and actions", f"another one after {step} steps")


def _ask(holds: bool | np.bool_, asked: str, found: object) -> None:
    if not holds:
        raise EnvFailure(f"the contract of a batch asks for {asked}; found {found}")


class _Trial:
    """A batch that is stepped; what it returns is copied to the host."""

    def __init__(self, batch: Batch, num_envs: int, bounds: Sequence[float] | None) -> None:
        missing = [name for name in (*Batch.__annotations__, "reset", "step", "close") if not hasattr(batch, name)]
        _ask(not missing, f"the attribute {', '.join(missing)}", type(batch).__name__)
        mode = batch.autoreset
        _ask(batch.num_envs == num_envs, f"num_envs={num_envs}, as it was made", batch.num_envs)
        _ask(isinstance(mode, AutoresetMode), "one of Gymnasium's AutoresetMode as autoreset", mode)
        _ask(batch.takes_ids or mode is not AutoresetMode.DISABLED, "takes_ids=True with DISABLED", batch.takes_ids)
        has_final = batch.has_final_obs or mode is AutoresetMode.SAME_STEP
        _ask(has_final, "has_final_obs=True but with SAME_STEP", batch.has_final_obs)
        self.batch, self.num_envs, self.codec = batch, num_envs, codec_of(batch, bounds)
        self.actions = batch_space(bounded(batch.action_space, bounds), num_envs)
        self.actions.seed(0)

    def rows(self, max_steps: int) -> list[dict[str, Array]]:
        """Returns what the batch gave: first observations, and of each vector step what it returned."""
        batch, mode = self.batch, self.batch.autoreset
        obs = self.observed("obs of reset", batch.reset(None, list(range(self.num_envs))))
        found: list[dict[str, Array]] = [{"obs": obs}]
        has_ended = was_done = np.zeros(self.num_envs, np.bool_)
        finals: list[tuple[bool, bool]] = []  # of ended episodes: the final observation is the next first, the last one
        while len(found) <= max_steps and not (has_ended.all() and len(found) > SEEDED_STEPS):
            result = batch.step(self.given(self.actions.sample()))
            _ask(isinstance(result, BatchStep), "a BatchStep from step", type(result).__name__)
            before, obs = obs, self.observed("obs", result.obs)
            reward = self.array("reward", result.reward, (), None)
            ends = [self.array(name, getattr(result, name), (), "bool") for name in ("terminated", "truncated")]
            done: Array = ends[0] | ends[1]
            found.append({"obs": obs, "reward": reward, "terminated": ends[0], "truncated": ends[1]})
            if mode is AutoresetMode.NEXT_STEP:
                begins = done | (reward != 0)
                asked = "reward 0 and no end in the step after an episode's end, which begins the next one (NEXT_STEP)"
                _ask(not (was_done & begins).any(), asked, f"reward {reward[was_done]}, ended {done[was_done]}")
            elif mode is AutoresetMode.DISABLED and done.any():
                obs = self.reset_some(np.flatnonzero(done), None, obs)
            elif batch.has_final_obs and done.any():
                _ask(result.final_obs is not None, "final_obs where SAME_STEP has ended an episode", None)
                final = self.observed("final_obs", result.final_obs)
                for env in np.flatnonzero(done):
                    finals.append((np.array_equal(final[env], obs[env]), np.array_equal(final[env], before[env])))
            has_ended, was_done = has_ended | done, done
        if max_steps > SEEDED_STEPS:
            _ask(has_ended.any(), f"an episode's end within max_steps={max_steps}, to see its observations", "none")
        asked = "final_obs as the step that ends an episode left it"
        _ask(not finals or not all(one for one, _ in finals), asked, "the first observation of the next episode")
        _ask(not finals or not all(one for _, one in finals), asked, "the observation before that step")
        if batch.takes_ids:
            self.reset_some(np.array([self.num_envs - 1]), [7], obs)
        return found

    def reset_some(self, ids: Array, seeds: list[int] | None, obs: Array) -> Array:
        """Resets some environments; returns the observations of all, those of the others as they were: `obs`."""
        begun = self.observed("obs of reset", self.batch.reset(self.given(ids), seeds))
        is_other = ~np.isin(np.arange(self.num_envs), ids)
        is_kept = np.array_equal(begun[is_other], obs[is_other], equal_nan=True)
        _ask(is_kept, f"the other observations unchanged by reset of {ids}", f"{begun[is_other]} after {obs[is_other]}")
        return begun

    def observed(self, name: str, obs: Obs) -> Array:
        """Returns the groups of an observation beside each other, [N, O]."""
        parts = []
        for leaf in self.codec.leaves:
            part, label = obs, f"{name}[{leaf.name!r}]" if leaf.path else name
            for key in leaf.path:
                _ask(isinstance(part, Mapping) and key in part, label, type(part).__name__)
                part = part[key]
            parts.append(self.array(label, part, leaf.shape, leaf.dtype).reshape(self.num_envs, -1))
        return np.concatenate(parts, axis=1)

    def array(self, name: str, values: Any, shape: tuple[int, ...], dtype: str | None) -> Array:
        """Returns a copy of an array [N, ...] of the batch, on the host."""
        device = self.batch.device
        if device is None:
            _ask(isinstance(values, np.ndarray), f"{name} as a NumPy array, since device is None", type(values))
            array = np.array(values)
        else:
            where = values.device.type if isinstance(values, torch.Tensor) else type(values)
            _ask(where == torch.device(device).type, f"{name} as a tensor on {device}", where)
            array = np.array(values.detach().cpu().numpy())
        wanted = (self.num_envs, *shape)
        _ask(array.shape == wanted, f"{name} of shape {wanted}", array.shape)
        is_right = array.dtype.kind in "fiub" if dtype is None else str(array.dtype) == dtype
        _ask(is_right, f"{name} of type {dtype or 'float'}", array.dtype)
        return array

    def given(self, values: Array) -> Any:  # Any: an array of the batch's kind
        """Returns an array as the batch takes it."""
        return values if self.batch.device is None else torch.from_numpy(values).to(self.batch.device)
