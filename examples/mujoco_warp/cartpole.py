"""A cart-pole of MuJoCo Warp whose state torch sees: a batch for `offpolicy`, to copy for a simulator like it.

The pole starts leaning and is to be kept up for 200 steps of 0.02 s. In this directory, in 90 s on one core of a CPU,
and another minute the first time, to compile:

    pip install mujoco-warp
    offpolicy train algo=sac env.batch=cartpole:CartPole env.num_envs=16 eval.num_envs=20 total_timesteps=40000 \
        algo.utd=0.5 algo.gamma=0.98 algo.hidden_dims=[64,64] algo.actor_lr=1e-3 algo.critic_lr=1e-3 algo.alpha_lr=1e-3

Steps that the pole stood, mean of 100 episodes: 31 with random actions, 32 with the best of 21 constant ones; SAC's
three seeds 200, 197 and 199, and with `collect.process=learner` 174, 186 and 195.
"""

import mujoco
import mujoco_warp
import numpy as np
import torch
import warp
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from offpolicy.envs.batch import BatchStep

MODEL = """
<mujoco>
  <option timestep="0.02"/>
  <worldbody>
    <body>
      <joint name="slide" type="slide" axis="1 0 0"/>
      <geom type="box" size="0.2 0.1 0.1" mass="1"/>
      <body>
        <joint type="hinge" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0 0 1" size="0.05" mass="0.1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="slide" gear="10"/>
  </actuator>
</mujoco>
"""
START = 0.4  # positions (m, rad) and velocities start in [-START, START]
MAX_POSITION, MAX_ANGLE = 2.0, 0.8  # m, rad; beyond them the task has ended


class CartPole:
    """`num_envs` worlds on `device`: cpu or, not tried, cuda:0.

    Observation: position, angle and their velocities. Action: the force on the cart, in tens of newtons. Reward: 1 a
    step.
    """

    autoreset, takes_ids, has_final_obs = AutoresetMode.DISABLED, True, True
    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    max_episode_steps = 200

    def __init__(self, num_envs: int, device: str = "cpu") -> None:
        self.num_envs, self.device = num_envs, device
        model = mujoco.MjModel.from_xml_string(MODEL)
        with warp.ScopedDevice(device):
            self._model, self._data = mujoco_warp.put_model(model), mujoco_warp.make_data(model, nworld=num_envs)
        # The same memory as the simulator's: [N, 2], [N, 2] and [N, 1].
        self._position, self._velocity, self._force = map(
            warp.to_torch, (self._data.qpos, self._data.qvel, self._data.ctrl)
        )
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._random = torch.Generator(device)

    def reset(self, ids=None, seeds=None):
        if seeds is not None:
            self._random.manual_seed(seeds[0])
        ids = torch.arange(self.num_envs, device=self.device) if ids is None else ids
        start = START * (2.0 * torch.rand(len(ids), 4, generator=self._random, device=self.device) - 1.0)
        self._position[ids], self._velocity[ids], self._steps[ids] = start[:, :2], start[:, 2:], 0
        return self._obs()

    def step(self, actions):
        self._force.copy_(actions)
        with warp.ScopedDevice(self.device):
            mujoco_warp.step(self._model, self._data)
        self._steps += 1
        position, angle = self._position.abs().T
        terminated = (position > MAX_POSITION) | (angle > MAX_ANGLE)
        truncated = self._steps >= self.max_episode_steps
        return BatchStep(self._obs(), torch.ones(self.num_envs, device=self.device), terminated, truncated)

    def close(self):
        pass

    def _obs(self):
        return torch.cat([self._position, self._velocity], dim=1)
