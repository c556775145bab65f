"""Whatever a batch does where an episode ends, the replay holds the same transitions, each with its true successor."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from offpolicy.collect.evaluation import run_episodes
from offpolicy.collect.replay_writer import ReplayWriter
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.batch import BatchStep
from offpolicy.envs.batches.gymnasium import GymnasiumBatch
from offpolicy.envs.env_adapter import VectorAdapter
from offpolicy.envs.probe import probe
from offpolicy.envs.vector import make_vector
from offpolicy.errors import ConfigError, EnvFailure
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_layout import RowLayout
from offpolicy.types import PolicyOutput, StepOutcome
from tests.replay_scene import transitions_of
from tests.toys import Counter

NUM_ENVS, STEPS, GAMMA = 3, 40, 0.5
LAYOUT = RowLayout(obs_dim=3, action_dim=1)


def gymnasium_twin(num_envs: int, mode: str, kind: str = "Counter", **kwargs: Any) -> GymnasiumBatch:
    make = functools.partial(globals()[kind], **kwargs)
    return GymnasiumBatch(SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode[mode]))


class TorchTwin:
    """The same environments as tensors; it resets by itself and uses the same memory in every step."""

    device = "cpu"
    autoreset, takes_ids, has_final_obs, max_episode_steps = AutoresetMode.SAME_STEP, False, True, None
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        self.num_envs, self.envs = num_envs, [Counter(**kwargs) for _ in range(num_envs)]
        self.obs, self.final = torch.zeros(num_envs, 3), torch.full((num_envs, 3), torch.nan)
        self.reward, self.ends = torch.zeros(num_envs), torch.zeros(2, num_envs, dtype=torch.bool)

    def reset(self, ids: Any = None, seeds: Any = None) -> torch.Tensor:
        for index, env in enumerate(self.envs):
            self.obs[index] = torch.as_tensor(env.reset(seed=seeds[0] + index)[0])
        return self.obs

    def step(self, actions: torch.Tensor) -> BatchStep:
        assert isinstance(actions, torch.Tensor)
        for index, (env, action) in enumerate(zip(self.envs, actions.numpy(), strict=True)):
            obs, self.reward[index], *ends, _ = env.step(action)
            self.ends[:, index] = torch.tensor(ends)
            if any(ends) and self.autoreset is AutoresetMode.SAME_STEP:
                self.final[index] = torch.as_tensor(obs)
                obs, _ = env.reset()
            self.obs[index] = torch.as_tensor(obs)
        return BatchStep(self.obs, self.reward, *self.ends, self.final, {"ends": self.ends.any(0).float().mean()})

    def close(self) -> None:
        pass


class Amnesic(TorchTwin):
    has_final_obs = False


def broken_factory(num_envs: int) -> TorchTwin:
    raise TypeError("track_lin_vel received unsupported parameters")


OF_FOUR = {"vector_entry_point": lambda num_envs: gymnasium_twin(num_envs, "SAME_STEP", truncate_at=4).env}
gymnasium.register("OnlyVector-v0", **OF_FOUR)
gymnasium.register("Both-v0", lambda: Counter(truncate_at=4), **OF_FOUR)
gymnasium.register("Counted-v0", entry_point=lambda **kwargs: Counter(**kwargs))
TWINS = {
    mode: EnvConfig(id="", batch=f"{__name__}:gymnasium_twin", kwargs={"mode": mode})
    for mode in AutoresetMode.__members__
}
TWINS["torch"] = EnvConfig(id="", batch=f"{__name__}:TorchTwin", action_bounds=(-1.0, 1.0))


def recorded(
    vector: VectorAdapter, obs: np.ndarray, actions: Sequence[np.ndarray], layout: RowLayout, n_step: int = 1
) -> tuple[list[StepOutcome], np.ndarray]:
    """The steps of a vector that has begun with `obs`, and the transitions that the replay has of them."""
    memory = memoryview(bytearray(ReplayRing.room_for(1000, layout, len(obs), n_step)))
    ring = ReplayRing(memory, layout, 1000, num_envs=len(obs), n_step=n_step)
    writer, outcomes = ReplayWriter(ring, gamma=GAMMA, n_step=n_step), []
    writer.begin()
    for step, action in enumerate(actions):
        outcomes.append(outcome := vector.step(action))
        writer.write(obs, PolicyOutput(action, None, step), outcome)
        obs = outcome.next_obs if outcome.reset_obs is None else outcome.reset_obs
    return outcomes, transitions_of(np.concatenate(ring.spans(0, ring.end)), ring.committed, layout, len(obs))


def collected(cfg: EnvConfig, n_step: int, **kwargs: Any) -> dict[int, np.ndarray]:
    """The first transitions of each environment, as the replay has them."""
    cfg = EnvConfig(id=cfg.id, batch=cfg.batch, kwargs={**cfg.kwargs, **kwargs}, action_bounds=cfg.action_bounds)
    vector = make_vector(cfg, NUM_ENVS)
    with contextlib.closing(vector):
        actions = [np.full((NUM_ENVS, 1), 0.5, np.float32)] * (2 * STEPS)
        rows = recorded(vector, vector.reset(5), actions, LAYOUT, n_step)[1]
    return {seed: rows[rows[:, 0] == seed][:STEPS] for seed in sorted({*rows[:, 0].tolist()})}


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("episode", [{"truncate_at": 1}, {"truncate_at": 3}, {"terminate_at": 5, "stagger": 1}])
def test_all_ways_to_reset_give_the_same_transitions(episode: dict[str, int], n_step: int) -> None:
    """The observations count steps, so that a successor of another episode would be seen."""
    expected = collected(TWINS["NEXT_STEP"], n_step, **episode)
    assert len(expected) == NUM_ENVS
    ends = 0
    for rows in expected.values():
        assert len(rows) == STEPS
        for obs, next_obs in zip(rows[:, :3], rows[:, 3:6], strict=True):
            assert 1 <= next_obs[1] - obs[1] <= n_step
            assert next_obs[2] == obs[2]
            ends += 1
    for name in ("SAME_STEP", "DISABLED", "torch"):
        found = collected(TWINS[name], n_step, **episode)
        assert [*found] == [*expected]
        for seed, rows in expected.items():
            assert np.array_equal(found[seed], rows), (name, seed)


class Tilted(Counter):
    """The first environment alone says how far it is tilted."""

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, info | ({"tilt": 3.0} if self._seed == 5 else {})


@pytest.mark.parametrize("mode", AutoresetMode.__members__)
def test_what_an_environment_does_not_say_at_an_episodes_end_is_unknown(mode: str) -> None:
    """Gymnasium's vectors fill it with zeros, and say in a mask whose they are."""
    kwargs = {"mode": mode, "kind": "Tilted", "truncate_at": 2}
    vector = make_vector(replace(TWINS[mode], kwargs=kwargs, measure="tilt"), 2)
    vector.begin([5, 6], np.ones(2, np.bool_))
    *_, end = (vector.step(np.zeros((2, 1), np.float32)) for _ in range(2))
    np.testing.assert_array_equal(end.measure, [3.0, np.nan])


@pytest.mark.parametrize("kind", ["sync", "async", *AutoresetMode.__members__])
def test_success_at_any_step_counts_where_it_is_asked_for(kind: str) -> None:
    """Success at step 2 of every second episode, which ends at step 3, 4, 5 or 6: another environment may end then."""
    cfg = TWINS.get(kind, EnvConfig(id="tests.toys:Counter-v0", vectorization=kind))
    kwargs = {**cfg.kwargs, "truncate_at": 3, "stagger": 1, "success_key": "success", "success_at": 2}
    for success, expected in (("last", {0.0}), ("any", {0.0, 1.0})):
        vector = make_vector(replace(cfg, kwargs=kwargs, success=success), NUM_ENVS)
        with contextlib.closing(vector):
            vector.reset(5)
            outcomes = [vector.step(np.zeros((NUM_ENVS, 1), np.float32)) for _ in range(30)]
        for env in range(NUM_ENVS):
            found = [one.success[env] for one in outcomes if one.truncated[env]]
            assert np.isnan([one.success[env] for one in outcomes if not one.truncated[env]]).all()
            assert found == [max(expected) * (episode % 2) for episode in range(len(found))]


def test_a_batch_without_final_observations_is_refused_unless_its_bias_is_accepted() -> None:
    cfg = EnvConfig(id="", batch=f"{__name__}:Amnesic", action_bounds=(-1.0, 1.0))
    with pytest.raises(ConfigError, match="env.final_obs: .*Amnesic .*got required, allowed missing"):
        make_vector(cfg, 2)
    accepted = EnvConfig(id="", batch=cfg.batch, action_bounds=(-1.0, 1.0), final_obs="missing")
    make_vector(accepted, 2).close()


class Silent(TorchTwin):
    def step(self, actions: torch.Tensor) -> BatchStep:
        return super().step(actions)._replace(final_obs=None)


@pytest.mark.parametrize("to", [None, torch.device("cpu")])
def test_an_end_without_its_final_observation_is_an_error(to: Any) -> None:
    cfg = EnvConfig(id="", batch=f"{__name__}:Silent", kwargs={"truncate_at": 1}, action_bounds=(-1.0, 1.0))
    vector: Any = make_vector(cfg, 2, to=to)
    vector.reset(1)
    action = torch.zeros(2, 1)
    with pytest.raises(EnvFailure, match="Silent: no final_obs where SAME_STEP has ended an episode"):
        vector.step(action if to else action.numpy())


def test_a_factory_that_fails_says_why() -> None:
    with pytest.raises(EnvFailure, match="TypeError: track_lin_vel received unsupported parameters"):
        make_vector(EnvConfig(id="", batch=f"{__name__}:broken_factory"), 2)


def test_bounds_are_the_environments_or_those_that_are_given() -> None:
    with pytest.raises(ConfigError, match=r"its bounds are infinite.*env.action_bounds=\[-1,1\]"):
        make_vector(EnvConfig(id="", batch=f"{__name__}:TorchTwin"), 1)
    with pytest.raises(ConfigError, match=r"env.action_bounds: got \[-1.0, 1.0, 2.0\]"):
        make_vector(EnvConfig(id="", batch=f"{__name__}:TorchTwin", action_bounds=(-1.0, 1.0, 2.0)), 1)
    vector = make_vector(EnvConfig(id="", batch=f"{__name__}:TorchTwin", action_bounds=(-2.0, 3.0)), 1)
    assert (vector.spec.action_low, vector.spec.action_high) == ((-2.0,), (3.0,))


@pytest.mark.parametrize("name", [*TWINS])
def test_an_evaluation_counts_whole_episodes(name: str) -> None:
    cfg = TWINS[name]
    cfg = EnvConfig(id="", batch=cfg.batch, kwargs={**cfg.kwargs, "truncate_at": 4}, action_bounds=cfg.action_bounds)
    found = run_episodes(lambda obs: np.zeros((len(obs), 1), np.float32), cfg, episodes=5, seed=1)
    assert found.length.tolist() == [4.0] * 5
    assert found.ep_return.tolist() == [1.0 + 2.0 + 3.0 + 4.0] * 5


@pytest.mark.parametrize("name", ["OnlyVector-v0", "Both-v0"])
def test_an_id_may_have_a_vector_alone_or_one_that_resets_otherwise_than_single_environments(name: str) -> None:
    spec, vectorization, _ = probe(EnvConfig(id=f"{__name__}:{name}", num_envs=2))
    assert (spec.obs_dim, vectorization) == (3, "vector")


def test_metadata_may_name_the_mode_by_its_text() -> None:
    for given in ("NextStep", "NEXT_STEP", AutoresetMode.NEXT_STEP):
        env = SyncVectorEnv([Counter])
        env.metadata = {"autoreset_mode": given}
        assert GymnasiumBatch(env).autoreset is AutoresetMode.NEXT_STEP
    env.metadata = {}
    with pytest.raises(ConfigError, match="autoreset_mode of the vector's metadata: got None, allowed NEXT_STEP"):
        GymnasiumBatch(env)
