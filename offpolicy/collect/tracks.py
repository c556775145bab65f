"""The episodes that a vector of environments is in the middle of, and what each of them becomes."""

from __future__ import annotations

import numpy as np

from offpolicy.collect.post import Episode
from offpolicy.types import Bool, Float32, Float64, StepOutcome


class Tracks:
    """One episode per environment, from its beginning on; the steps themselves are kept only if asked for."""

    def __init__(self, obs: Float32, now_ns: int, *, keeps_steps: bool) -> None:
        """obs: the first ones [N, O]."""
        num_envs = len(obs)
        self._keeps_steps = keeps_steps
        self._running: Float64 = np.zeros((2, num_envs))  # return and length so far
        self._steps: list[list[tuple[Float32, float]]] = [[] for _ in range(num_envs)]  # action [A] and reward
        self._obs: list[list[Float32]] = [[] for _ in range(num_envs)]
        self._last: StepOutcome | None = None
        self.started_ns = [now_ns] * num_envs
        self.begin(np.ones(num_envs, np.bool_), obs, now_ns)

    def begin(self, where: Bool, obs: Float32, now_ns: int) -> None:
        """New episodes `where` [N]; obs: [N, O]."""
        self._running[:, where] = 0.0
        for env in np.flatnonzero(where):
            self.started_ns[env] = now_ns
            self._steps[env], self._obs[env] = [], [obs[env]] if self._keeps_steps else []

    def add(self, action: Float32, outcome: StepOutcome, is_playing: Bool) -> None:
        """One vector step, counted where an episode of ours goes on [N]: autoreset rows come after it."""
        self._last = outcome
        self._running += np.where(is_playing, (outcome.reward, np.ones(len(outcome.reward))), 0.0)
        if self._keeps_steps:
            for env in np.flatnonzero(is_playing):
                self._steps[env].append((action[env], float(outcome.reward[env])))
                self._obs[env].append(outcome.next_obs[env])

    def result(self, env: int) -> Float64:
        """Return, length and measure of the episode that has ended there [3]."""
        return np.array([*self._running[:, env], self._outcome.measure[env]])

    @property
    def _outcome(self) -> StepOutcome:
        assert self._last is not None, "no step was taken"
        return self._last

    def episode(self, env: int, index: int, env_steps: int, policy_version: int) -> Episode:
        """The episode that has ended there, number `index` of the evaluation."""
        outcome, steps = self._outcome, self._steps[env]
        return Episode(
            index=index,
            env_steps=env_steps,
            policy_version=policy_version,
            ep_return=float(self._running[0, env]),
            length=len(steps),
            success=float(outcome.success[env]),
            measure=float(outcome.measure[env]),
            terminated=bool(outcome.terminated[env]),
            truncated=bool(outcome.truncated[env]),
            obs=np.stack(self._obs[env]),
            action=np.stack([action for action, _ in steps]),
            reward=np.array([reward for _, reward in steps]),
        )
