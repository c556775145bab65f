"""The one contract for environments that are stepped together, and its plainest kind: one environment after another.

Actions come in [-1, 1] and are mapped to the environment's bounds here; observations are float32 [N, O]; rewards stay
float64. Autoreset is Gymnasium's NEXT_STEP: the row that ends an episode carries its true final observation, and the
next row of that environment is a reset row (`is_valid` False, action ignored, reward 0).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.batch import Batch
from offpolicy.envs.make import Env, cause_of, failure_text, make_env, old_gym
from offpolicy.envs.spaces import Codec, action_map, as_array, bounded, describe, env_action, flatten
from offpolicy.errors import ConfigError, EnvFailure
from offpolicy.types import Bool, Float32, StepOutcome

SUCCESS_NAMES = ("is_success", "success")  # info: what environments call it, the first one that is there
LARGEST_MEASURE = float(np.finfo(np.float32).max)

_LOG = logging.getLogger(__name__)


class VectorAdapter:
    """`num_envs` environments. Every array that it returns is the caller's to keep.

    `reset` and `step` raise `EnvFailure` with the environment's own traceback, index, seed and step; with
    `env.vectorization=async` also when a worker dies, and `HangError` when one is silent for `env.step_timeout_s`.
    After a failure only `renew` and `close` may be called.
    """

    can_reset_some = True  # `reset_some` is possible
    device: str | None = None  # of the tensors of a batch; None: arrays
    obs_dtype: type[np.floating[Any]] = np.float32  # of observations; the probe takes all that an environment gives

    def __init__(
        self, cfg: EnvConfig, codec: Codec, num_envs: int, on_progress: Callable[[], object] = lambda: None
    ) -> None:
        self.cfg, self.codec, self.spec, self.num_envs = cfg, codec, codec.spec, num_envs
        self.on_progress = on_progress
        self.was_done: Bool = np.zeros(num_envs, np.bool_)  # [N] the previous row ended an episode
        self.best_success: Float32 = np.full(num_envs, np.nan, np.float32)  # [N] of the running episode so far
        self.to_env = action_map(codec)

    def reset(self, seed: int) -> Float32:
        """Starts an episode everywhere; environment i gets seed number i of `seed`. Returns obs [N, O]."""
        return self.begin(env_seeds(seed, self.num_envs), np.ones(self.num_envs, np.bool_))

    def reset_some(self, seed: int, numbers: Sequence[int], where: Bool) -> Float32:
        """Starts an episode only `where` [N]; environment i gets the seed number `numbers[i]` of `seed`.

        The others stay as they are. Returns obs [N, O] of all. Only if `can_reset_some`.
        """
        return self.begin([env_seeds(seed, 1, number)[0] for number in numbers], where)

    def begin(self, seeds: Sequence[int], where: Bool) -> Float32:
        """Starts an episode with its seed `where` [N]. Returns obs [N, O] of all."""
        raise NotImplementedError

    def step(self, action: Float32) -> StepOutcome:
        """One vector step. action: [N, A] in [-1, 1], or the numbers of discrete ones; clipped to the bounds."""
        raise NotImplementedError

    def success_of(self, success: Float32, done: Bool) -> Float32:
        """Returns the success [N] of the episodes that end, from what a step has said, as `env.success` says."""
        if self.cfg.success == "any":
            success = np.fmax(self.best_success, success)
            self.best_success = np.where(done, np.float32(np.nan), success)
        return np.where(done, success, np.float32(np.nan))

    def renew(self) -> None:
        """Replaces the environments by new ones of the same configuration, to be reset. Raises as `make_vector`."""
        self.close()

    def close(self) -> None:
        """Closes every environment and ends every worker; safe after a failure."""
        raise NotImplementedError


class EnvAdapter(VectorAdapter):
    """Gymnasium environments, stepped one after another. A reset constructs those that are missing.

    `on_progress` is called before each construction, reset and step. A worker holds number `index` of `total`.
    """

    def __init__(  # noqa: PLR0913  # the last two are a worker's
        self,
        cfg: EnvConfig,
        codec: Codec,
        num_envs: int,
        on_progress: Callable[[], object] = lambda: None,
        *,
        first: Env | None = None,
        index: int = 0,
        total: int | None = None,
    ) -> None:
        """`first` is environment 0, where there is one already."""
        super().__init__(cfg, codec, num_envs, on_progress)
        self.envs = [] if first is None else [first]
        self.seeds: list[int | None] = [None] * num_envs
        self.episode_steps = [0] * num_envs
        self.obs: Float32 = np.zeros((num_envs, codec.spec.obs_dim), np.float32)  # [N, O] the newest
        self._index, self._total = index, num_envs if total is None else total

    def begin(self, seeds: Sequence[int], where: Bool) -> Float32:
        """Starts an episode with its seed `where` [N]. Returns obs [N, O] of all."""
        self.obs = self.obs.astype(self.obs_dtype, copy=False)
        for env in np.flatnonzero(where).tolist():
            self.seeds[env] = seeds[env]
            self._begin_episode(env, seeds[env])
        self.was_done = self.was_done & ~where
        self.best_success[where] = np.nan
        return self.obs.copy()

    def _begin_episode(self, env: int, seed: int | None) -> None:
        self.episode_steps[env] = 0
        call = "construction"
        try:
            if env == len(self.envs):
                self.on_progress()
                self.envs.append(make_env(self.cfg))
                if (own := codec_of(self.envs[env], self.cfg.action_bounds)) != self.codec:
                    raise EnvFailure(f"its spaces differ from those of env 0: expected {self.spec}, got {own.spec}")
            call = "reset"
            self.on_progress()
            result = self.envs[env].reset(seed=seed)
            _check_length("reset", result, 2, "(obs, info)")
            flatten(self.codec, result[0], self.obs[env])
        except (Exception, SystemExit) as error:
            raise self._failure(env, call, error) from None

    def step(self, action: Float32) -> StepOutcome:
        """One vector step. action: [N, A] in [-1, 1], or the numbers of discrete ones; clipped to the bounds."""
        actions, is_valid, num_envs = self.to_env(action), ~self.was_done, self.num_envs
        reward, terminated, truncated = np.zeros(num_envs), np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
        success, measure = np.full(num_envs, np.nan, np.float32), np.full(num_envs, np.nan, np.float32)
        for env, row in enumerate(actions):
            if not is_valid[env]:
                self._begin_episode(env, None)
                continue
            self.on_progress()
            self.episode_steps[env] += 1
            try:
                result = self.envs[env].step(env_action(self.codec, row))
                _check_length("step", result, 5, "(obs, reward, terminated, truncated, info)")
                flatten(self.codec, result[0], self.obs[env])
                if (number := number_in(result[1])) is None:  # NaN and Inf pass: the writer of the rows handles them
                    raise EnvFailure(f"reward: expected a number, got {type(result[1]).__name__} {result[1]!r:.80}")
                reward[env] = number
                terminated[env], truncated[env] = done = bool(result[2]), bool(result[3])
                if (any(done) or self.cfg.success == "any") and isinstance(info := result[4], dict):
                    success[env] = measured(next((info[name] for name in SUCCESS_NAMES if name in info), None))
                    measure[env] = measured(info.get(self.cfg.measure or "") if any(done) else None)
            except (Exception, SystemExit) as error:
                raise self._failure(env, "step", error, row) from None
        self.was_done = terminated | truncated
        success = self.success_of(success, self.was_done)
        return StepOutcome(self.obs.copy(), reward, terminated, truncated, is_valid, success, measure)

    def close(self) -> None:
        """Closes the environments."""
        for number, env in enumerate(self.envs, self._index):
            close_env(env, f"env {number} of {self._total}")
        self.envs = []

    def _failure(self, env: int, call: str, error: BaseException, action: NDArray[Any] | None = None) -> EnvFailure:
        shown = "none" if action is None else np.array2string(action, max_line_width=1000)
        where = f"seed {self.seeds[env]}, episode step {self.episode_steps[env]}, last action {shown}"
        head = f"env {self._index + env} of {self._total} ({self.cfg.id}) failed in {call}: {where}"
        if isinstance(error, EnvFailure | ConfigError):  # ours: where it was raised says nothing
            return EnvFailure(f"{head}: {error}{old_gym(error)}")
        return EnvFailure(f"{head}: {cause_of(error)}{old_gym(error)}\n{failure_text(error)}")


def close_env(env: Any, name: str) -> None:
    """Closes an environment. What it raises is logged: its work is done."""
    try:
        env.close()
    except (Exception, SystemExit) as error:
        _LOG.warning("%s failed in close\n%s", name, failure_text(error))


def env_seeds(seed: int, num_envs: int, first: int = 0) -> tuple[int, ...]:
    """Returns the seeds from number `first` on: distinct, below 2**31, and far from those of a neighbouring `seed`."""
    base = int(np.random.SeedSequence(seed).generate_state(1)[0]) % 2**30
    return tuple(base + first + index for index in range(num_envs))


def codec_of(env: Env | Batch, bounds: Sequence[float] | None = None) -> Codec:
    """Returns the layout of one environment, or of each of a batch. Raises `ConfigError` for spaces of other kinds.

    `bounds` are those of `env.action_bounds`.
    """
    if isinstance(env, gymnasium.Env):
        limit = env.spec.max_episode_steps if env.spec is not None else None
    else:
        limit = env.max_episode_steps
    return describe(env.observation_space, bounded(env.action_space, bounds), limit)


def _check_length(call: str, result: Any, length: int, form: str) -> None:
    if not isinstance(result, tuple) or len(result) != length:
        got = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
        raise EnvFailure(f"{call} must return {form}, got {got}")


def number_in(value: Any) -> float | None:
    """Returns the one number that a reward or an entry of an info is, NaN and Inf too; None for anything else."""
    if type(value) is float:
        return value
    array = as_array(value)
    return float(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind in "fiub" else None


def measured(value: Any) -> float:
    """Returns the number that an info holds; NaN for what is none, or not finite in float32."""
    number = number_in(value)
    return math.nan if number is None or abs(number) > LARGEST_MEASURE else number
