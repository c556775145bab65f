"""A batch of tensors fills the ring on its device with the transitions that the host's ring has of the same batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from offpolicy.collect.device_writer import DeviceWriter
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.batch import BatchStep
from offpolicy.envs.vector import make_vector
from offpolicy.errors import ConfigError
from offpolicy.replay.device_ring import DeviceRing
from offpolicy.replay.ring import HEADER_BYTES
from offpolicy.types import PolicyOutput
from tests.replay_scene import transitions_of
from tests.unit.envs.test_batch import GAMMA, LAYOUT, NUM_ENVS, STEPS, TWINS, TorchTwin, collected

CPU = torch.device("cpu")


class Manual(TorchTwin):
    """The same environments, reset by their numbers. They succeed at step 2, in memory that a reset clears."""

    autoreset, takes_ids = AutoresetMode.DISABLED, True

    def reset(self, ids: Any = None, seeds: Any = None) -> torch.Tensor:
        self.final.zero_()
        for number, index in enumerate(range(self.num_envs) if ids is None else ids.tolist()):
            seed = None if seeds is None else seeds[number]
            self.obs[index] = torch.as_tensor(self.envs[index].reset(seed=seed)[0])
        return self.obs

    def step(self, actions: torch.Tensor) -> BatchStep:
        result = super().step(actions)
        self.final[:, 0] = self.obs[:, 1] == 2
        return result._replace(log={**result.log, "success": self.final[:, 0]})


class Stepwise(TorchTwin):
    autoreset = AutoresetMode.NEXT_STEP


def env_of(kind: type, **kwargs: Any) -> EnvConfig:
    return EnvConfig(id="", batch=f"{__name__}:{kind.__name__}", kwargs=kwargs, action_bounds=(-1.0, 1.0))


def filled(cfg: EnvConfig, n_step: int, capacity: int = 1000) -> DeviceRing:
    vector: Any = make_vector(cfg, NUM_ENVS, to=CPU)
    header = memoryview(bytearray(HEADER_BYTES))
    ring = DeviceRing(header, LAYOUT, capacity, num_envs=NUM_ENVS, n_step=n_step, device=CPU)
    writer = DeviceWriter(ring, gamma=GAMMA, n_step=n_step)
    obs, action = vector.reset(5), torch.full((NUM_ENVS, 1), 0.5)
    output: Any = PolicyOutput(action, None, 0)  # type: ignore[arg-type]  # a tensor
    for _ in range(2 * STEPS):
        outcome = vector.step(action)
        writer.write(obs, output, outcome)
        obs = outcome.reset_obs
    vector.close()
    return ring


@pytest.mark.parametrize("kind", [TorchTwin, Manual])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("episode", [{"truncate_at": 1}, {"truncate_at": 3}, {"terminate_at": 5, "stagger": 1}])
def test_the_ring_on_the_device_has_the_transitions_of_the_hosts(
    kind: type, n_step: int, episode: dict[str, int]
) -> None:
    ring = filled(env_of(kind, **episode), n_step)
    slots = np.concatenate([rows.numpy() for rows in ring.spans(0, ring.committed)])
    rows = transitions_of(slots, ring.complete, LAYOUT, NUM_ENVS)
    for seed, expected in collected(TWINS["NEXT_STEP"], n_step, **episode).items():
        assert np.array_equal(rows[rows[:, 0] == seed][:STEPS], expected), seed


def test_the_ring_keeps_the_newest_transitions_and_says_how_many() -> None:
    ring = filled(env_of(TorchTwin, truncate_at=3), 1, capacity=30)
    assert 30 <= ring.num_transitions <= 30 + NUM_ENVS
    assert ring.num_written == 2 * STEPS * NUM_ENVS
    slots = ring.read_range(0, ring.committed)
    assert len(slots) == 2 * ring.num_transitions
    again = DeviceRing(memoryview(bytearray(HEADER_BYTES)), LAYOUT, 30, num_envs=NUM_ENVS, device=CPU)
    again.restore_slots(ring.oldest, [slots], ring.copy_open(), ring.num_written)
    assert np.array_equal(again.read_range(0, again.committed), slots)
    assert again.num_transitions == ring.num_transitions


def test_a_batch_of_tensors_whose_episodes_begin_in_a_step_of_their_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="resets by NEXT_STEP, allowed SAME_STEP or DISABLED"):
        make_vector(env_of(Stepwise), NUM_ENVS, to=CPU)


class Chooses(TorchTwin):
    action_space = spaces.Discrete(3, start=5)

    def step(self, actions: torch.Tensor) -> BatchStep:
        self.chosen = actions.tolist()
        return super().step(torch.zeros(self.num_envs, 1))


def test_a_discrete_action_of_tensors_is_the_one_that_was_chosen() -> None:
    vector: Any = make_vector(EnvConfig(id="", batch=f"{__name__}:Chooses"), NUM_ENVS, to=CPU)
    vector.reset(5)
    vector.step(torch.tensor([[0.0], [1.0], [2.0]]))
    assert vector.batch.chosen == [5, 6, 7]


@pytest.mark.parametrize("to", [None, CPU])
@pytest.mark.parametrize(("length", "last"), [(2, 1.0), (3, 0.0)])
def test_success_is_that_of_the_episode_that_ends(to: Any, length: int, last: float) -> None:
    for success, expected in (("last", last), ("any", 1.0)):
        vector: Any = make_vector(replace(env_of(Manual, truncate_at=length), success=success), NUM_ENVS, to=to)
        vector.reset(1)
        action = torch.zeros(NUM_ENVS, 1)
        first, *_, end = (vector.step(action if to else action.numpy()) for _ in range(2 * length))
        assert (end.success.tolist(), first.log["ends"], end.log["ends"]) == ([expected] * NUM_ENVS, 0.0, 1.0)
