"""The tasks of an arm: Reacher and Pusher (Gymnasium v5). Neither terminates."""

# MuJoCo's names come from a compiled module, which pyright cannot read.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from offpolicy.envs.batched.simulations import Array, Simulations
from offpolicy.envs.batched.task import Outcome, Params, State, Task, length, squares

MAX_SPEED = 0.005  # of a joint at the start, in rad/s
REACH = 0.2  # of Reacher's arm, in m
NUM_JOINTS = 7  # of Pusher's arm
PUSH_DISTANCE = 0.17  # smallest distance of Pusher's object from its goal at the start, in m


class Reacher(Task):
    """Brings the tip of an arm of two joints to a target."""

    def __init__(self, sims: Simulations, start: State, dt: float, params: Params) -> None:
        super().__init__(sims, start, dt, params)
        self._places = sims.bind("xpos")
        self._tip, self._target = (sims.model.body(name).id for name in ("fingertip", "target"))

    def draw(self, rng: np.random.Generator) -> State:
        qpos = rng.uniform(-0.1, 0.1, len(self.first.qpos)) + self.first.qpos
        while np.linalg.norm(goal := rng.uniform(-REACH, REACH, 2)) >= REACH:
            pass
        qpos[-2:] = goal
        qvel = self.first.qvel + rng.uniform(-MAX_SPEED, MAX_SPEED, len(self.first.qvel))
        qvel[-2:] = 0.0
        return State(qpos, qvel)

    def _to_target(self) -> Array:
        gap: Array = self._places[:, self._tip] - self._places[:, self._target]
        return gap

    def observe(self) -> Array:
        qpos, angle = self.sims.qpos, self.sims.qpos[:, :2]
        return np.concatenate(
            (np.cos(angle), np.sin(angle), qpos[:, 2:], self.sims.qvel[:, :2], self._to_target()[:, :2]), axis=1
        )

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        dist = -length(self._to_target()) * self.params["reward_dist_weight"]
        ctrl = -squares(action) * self.params["reward_control_weight"]
        return Outcome(dist + ctrl, self.never, {"reward_dist": dist, "reward_ctrl": ctrl})


class Pusher(Task):
    """Pushes an object to a goal with an arm of seven joints."""

    def __init__(self, sims: Simulations, start: State, dt: float, params: Params) -> None:
        super().__init__(sims, start, dt, params)
        self._places = sims.bind("xpos")
        self._tip, self._object, self._goal = (sims.model.body(name).id for name in ("tips_arm", "object", "goal"))

    def draw(self, rng: np.random.Generator) -> State:
        qpos = self.first.qpos.copy()
        while True:
            place = np.array([rng.uniform(-0.3, 0.0), rng.uniform(-0.2, 0.2)])
            if np.linalg.norm(place) > PUSH_DISTANCE:
                break
        qpos[-4:-2], qpos[-2:] = place, 0.0
        qvel = self.first.qvel + rng.uniform(-MAX_SPEED, MAX_SPEED, len(self.first.qvel))
        qvel[-4:] = 0.0
        return State(qpos, qvel)

    def observe(self) -> Array:
        joints, speeds = self.sims.qpos[:, :NUM_JOINTS], self.sims.qvel[:, :NUM_JOINTS]
        places = [self._places[:, body] for body in (self._tip, self._object, self._goal)]
        return np.concatenate((joints, speeds, *places), axis=1)

    def outcome(self, action: NDArray[np.floating[Any]], moved: Array) -> Outcome:
        pushed = self._places[:, self._object]
        near = -length(pushed - self._places[:, self._tip]) * self.params["reward_near_weight"]
        dist = -length(pushed - self._places[:, self._goal]) * self.params["reward_dist_weight"]
        ctrl = -squares(action) * self.params["reward_control_weight"]
        return Outcome(dist + ctrl + near, self.never, {"reward_dist": dist, "reward_ctrl": ctrl, "reward_near": near})
