"""The wrapper of one environment: vectors in, vectors out, failures as text.

Gymnasium's vector environments see only these adapters, so every environment looks the same to them: a float32
observation vector [O], an action vector [A] in the environment's own bounds, a float reward, two bools, and an info
that is empty unless an episode ended with a known success or something failed. A failure is data, not an exception: it
must cross processes whatever its type, and the other environments of the vector step keep their results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.make import Env, cause_of, failure_text, make_env
from offpolicy.envs.spaces import Codec, describe
from offpolicy.errors import ConfigError, EnvFailure
from offpolicy.types import Float32

FAILURE_KEY = "offpolicy_failure"  # info: what failed, as text
SUCCESS_KEY = "offpolicy_success"  # info: 1.0 or 0.0 at an episode's end
SUCCESS_NAMES = ("is_success", "success")  # info: what environments call it, the first one that is there
MEASURE_KEY = "offpolicy_measure"  # info: the number that `env.measure` names, at an episode's end

_LOG = logging.getLogger(__name__)


class EnvAdapter(gymnasium.Env[Float32, NDArray[np.floating[Any]]]):
    """One environment behind a fixed interface. It is constructed by `open`, or by the first reset.

    `on_progress` is called before each construction, reset and step.
    """

    def __init__(
        self,
        cfg: EnvConfig,
        index: int,
        num_envs: int,
        codec: Codec,
        env: Env | None = None,
        on_progress: Callable[[], object] | None = None,
    ) -> None:
        self.cfg = cfg
        self.index = index
        self.num_envs = num_envs
        self.codec = codec
        self.env = env
        self.on_progress = on_progress
        self.seed: int | None = None
        self.episode_step = 0
        self.last_action: NDArray[np.floating[Any]] | None = None
        spec, dtype = codec.spec, np.dtype(codec.action_dtype).type
        self.observation_space = spaces.Box(-np.inf, np.inf, (spec.obs_dim,), np.float32)
        self.action_space = spaces.Box(
            np.asarray(spec.action_low, dtype), np.asarray(spec.action_high, dtype), dtype=dtype
        )

    def open(self) -> Env:
        """Returns the environment itself, constructed at the first call. Raises `EnvFailure` or `ConfigError`."""
        if self.env is None:
            self.env = make_env(self.cfg)
            own = codec_of(self.env)
            if own != self.codec:
                raise EnvFailure(f"its spaces differ from those of env 0: expected {self.codec.spec}, got {own.spec}")
        return self.env

    def opened(self) -> EnvAdapter:
        """Opens the environment and returns self. Raises as `open`, and an `EnvFailure` names this environment."""
        if self.on_progress is not None:
            self.on_progress()
        try:
            self.open()
        except EnvFailure as error:
            raise EnvFailure(self._failure("construction", error)) from error
        return self

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float32, dict[str, Any]]:
        """Returns the first observation [O] of an episode and an info that is empty unless it failed."""
        if self.on_progress is not None:
            self.on_progress()
        self.seed = self.seed if seed is None else seed
        self.episode_step, self.last_action = 0, None
        try:
            result = self.open().reset(seed=seed)
            _check_length("reset", result, 2, "(obs, info)")
            return self.codec.flatten(result[0]), {}
        except (Exception, SystemExit) as error:
            return self._blank_obs(), {FAILURE_KEY: self._failure("reset", error)}

    def step(self, action: NDArray[np.floating[Any]]) -> tuple[Float32, float, bool, bool, dict[str, Any]]:
        """One transition. action: [A] in the environment's bounds."""
        assert self.env is not None, "reset comes first"
        if self.on_progress is not None:
            self.on_progress()
        self.episode_step += 1
        self.last_action = action
        try:
            result = self.env.step(self.codec.env_action(action))
            _check_length("step", result, 5, "(obs, reward, terminated, truncated, info)")
            obs, reward, terminated, truncated, info = result
            done = bool(terminated) or bool(truncated)
            return (
                self.codec.flatten(obs),
                _number(reward),
                bool(terminated),
                bool(truncated),
                _episode_info(info, self.cfg.measure) if done else {},
            )
        except (Exception, SystemExit) as error:
            return self._blank_obs(), 0.0, False, False, {FAILURE_KEY: self._failure("step", error)}

    def close(self) -> None:
        """Closes the environment. What it raises is logged: its work is done."""
        if self.env is None:
            return
        try:
            self.env.close()
        except (Exception, SystemExit) as error:
            _LOG.warning("env %d of %d failed in close\n%s", self.index, self.num_envs, failure_text(error))

    def _blank_obs(self) -> Float32:
        return np.zeros(self.codec.spec.obs_dim, np.float32)

    def _failure(self, call: str, error: BaseException) -> str:
        action = "none" if self.last_action is None else np.array2string(self.last_action, max_line_width=1000)
        where = f"seed {self.seed}, episode step {self.episode_step}, last action {action}"
        head = f"env {self.index} of {self.num_envs} ({self.cfg.id}) failed in {call}: {where}"
        if isinstance(error, EnvFailure | ConfigError):  # ours: where it was raised says nothing
            return f"{head}: {error}"
        return f"{head}: {cause_of(error)}\n{failure_text(error)}"


def codec_of(env: Env) -> Codec:
    """Returns the layout of an environment. Raises `ConfigError` if its spaces are not supported."""
    limit = env.spec.max_episode_steps if env.spec is not None else None
    return describe(env.observation_space, env.action_space, limit)


def _check_length(call: str, result: Any, length: int, form: str) -> None:
    if not isinstance(result, tuple) or len(result) != length:
        got = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
        raise EnvFailure(f"{call} must return {form}, got {got}")


def _number(reward: Any) -> float:
    """Returns the reward as a float; NaN and Inf pass, because the writer of the rows handles them."""
    if type(reward) is float:
        return reward
    array = np.asarray(reward)
    if array.size != 1 or array.dtype.kind not in "fiub":
        raise EnvFailure(f"reward: expected a number, got {type(reward).__name__} {reward!r:.80}")
    return float(array.reshape(-1)[0])


def _episode_info(info: Any, measure: str | None) -> dict[str, float]:
    """Returns the success of an episode and the number that `measure` names, where its last info has them."""
    if not isinstance(info, dict):
        return {}
    success = next((info[name] for name in SUCCESS_NAMES if name in info), None)
    found = {SUCCESS_KEY: success, MEASURE_KEY: info.get(measure)}
    arrays = {key: as_array(value) for key, value in found.items()}
    return {key: float(a.reshape(-1)[0]) for key, a in arrays.items() if a.size == 1 and a.dtype.kind in "fiub"}


def as_array(value: Any) -> NDArray[Any]:
    """Returns what an info holds as an array; an empty one for what is none, such as a ragged list."""
    try:
        return np.asarray(value)
    except Exception:  # of the user's own class, too
        return np.empty(0)
