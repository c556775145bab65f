"""The kit for batches: sound ones pass, and each rule of the contract refuses the batch that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.batch import BatchStep
from offpolicy.envs.batches.gymnasium import GymnasiumBatch
from offpolicy.envs.check_batch import check_batch
from offpolicy.envs.toy_batch import PointMasses
from offpolicy.envs.vector import open_batch
from offpolicy.errors import ConfigError, EnvFailure
from tests.toys import Counter, DictObs, DiscreteToy, Locks
from tests.unit.envs.test_batch import TorchTwin


def of_toys(toy: Callable[[], gymnasium.Env[Any, Any]], mode: str) -> Callable[[int], Any]:
    envs: Any = lambda: gymnasium.wrappers.TimeLimit(toy(), 5)  # noqa: E731
    return lambda n: GymnasiumBatch(SyncVectorEnv([envs] * n, autoreset_mode=AutoresetMode[mode]))


SOUND: dict[str, Callable[[int], Any]] = {
    "arrays": lambda n: PointMasses(n, limit=7),
    "tensors": lambda n: PointMasses(n, "cpu", limit=7),
    "same memory": lambda n: TorchTwin(n, terminate_at=4, stagger=1),
    "cheetahs": lambda n: open_batch(
        EnvConfig(id="HalfCheetah-v5", kwargs={"max_episode_steps": 12}, vectorization="mujoco"), n
    ),
    **{mode: of_toys(lambda: Counter(stagger=1), mode) for mode in AutoresetMode.__members__},
    **{
        f"{toy.__name__} {mode}": of_toys(toy, mode)
        for toy in (DictObs, DiscreteToy, Locks)
        for mode in AutoresetMode.__members__
    },
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_batch_passes(name: str) -> None:
    check_batch(SOUND[name], action_bounds=(-1.0, 1.0) if name == "same memory" else None)


class Masses(PointMasses):
    """Point masses whose parts the tests replace: what a step returns, and what `reset` begins."""

    def __init__(self, num_envs: int, change: Callable[..., Any] = lambda batch, step: step, **parts: Any) -> None:
        super().__init__(num_envs, limit=7)
        self.change = change
        vars(self).update(parts)

    def step(self, actions: Any) -> BatchStep:
        changed: BatchStep = self.change(self, super().step(actions))
        return changed


class ResetsAll(Masses):
    takes_ids = True


class Unseeded(Masses):
    def reset(self, ids: Any = None, seeds: Any = None) -> Any:
        return super().reset()

    def _first(self) -> torch.Tensor:
        return torch.rand(self.num_envs, 4)


class NoClose:
    num_envs, device = 1, None

    def close(self) -> None: ...


def grouped(batch: Any, step: BatchStep) -> BatchStep:
    return step._replace(obs={"actor": step.obs})


GROUPS = spaces.Dict({"actor": PointMasses.observation_space, "critic": PointMasses.observation_space})


def stale(batch: Any, step: BatchStep) -> BatchStep:
    before, batch.before = getattr(batch, "before", step.obs), step.obs
    return step._replace(final_obs=before)


BROKEN: dict[str, tuple[Callable[[int], Any], str]] = {
    "attributes": (lambda n: NoClose(), "the attribute observation_space, .*, reset, step; found NoClose"),
    "num_envs": (lambda n: Masses(2), "num_envs=1, as it was made; found 2"),
    "only one": (lambda n: Masses(1), "num_envs=3, as it was made; found 1"),
    "autoreset": (
        lambda n: Masses(n, autoreset="SAME_STEP"),
        "one of Gymnasium.s AutoresetMode as autoreset; found SAME_STEP",
    ),
    "takes_ids": (lambda n: Masses(n, autoreset=AutoresetMode.DISABLED), "takes_ids=True with DISABLED; found False"),
    "has_final_obs": (
        lambda n: Masses(n, autoreset=AutoresetMode.NEXT_STEP, has_final_obs=False),
        "has_final_obs=True but with SAME_STEP; found False",
    ),
    "step": (lambda n: Masses(n, lambda batch, step: tuple(step)), "a BatchStep from step; found tuple"),
    "obs shape": (
        lambda n: Masses(n, lambda batch, step: step._replace(obs=step.obs[:, :3])),
        r"obs of shape \(1, 4\); found \(1, 3\)",
    ),
    "obs dtype": (
        lambda n: Masses(n, lambda batch, step: step._replace(obs=step.obs.astype(np.float64))),
        "obs of type float32; found float64",
    ),
    "obs groups": (
        lambda n: Masses(
            n, grouped, observation_space=GROUPS, reset=lambda *_: dict.fromkeys(GROUPS, np.zeros((n, 4), np.float32))
        ),
        r"obs\['critic'\]; found dict",
    ),
    "reward": (
        lambda n: Masses(n, lambda batch, step: step._replace(reward=step.reward[:, None])),
        r"reward of shape \(1,\); found \(1, 1\)",
    ),
    "terminated": (
        lambda n: Masses(n, lambda batch, step: step._replace(terminated=step.terminated.astype(np.float32))),
        "terminated of type bool; found float32",
    ),
    "truncated": (
        lambda n: Masses(n, lambda batch, step: step._replace(truncated=False)),
        "truncated as a NumPy array, since device is None; found <class 'bool'>",
    ),
    "device": (
        lambda n: Masses(n, device="cpu", _own=torch.Tensor.numpy),
        "obs of reset as a tensor on cpu; found <cl",
    ),
    "no final_obs": (
        lambda n: Masses(n, lambda batch, step: step._replace(final_obs=None)),
        "final_obs where SAME_STEP has ended an episode; found None",
    ),
    "next final_obs": (
        lambda n: Masses(n, lambda batch, step: step._replace(final_obs=step.obs)),
        "final_obs as the step that ends .*; found the first observation of the next",
    ),
    "stale final_obs": (lambda n: Masses(n, stale), "final_obs as the step .*; found the observation before that"),
    "no row of reset": (
        lambda n: Masses(n, autoreset=AutoresetMode.NEXT_STEP),
        r"reward 0 and no end in the step after .*; found reward \[-",
    ),
    "no end": (
        lambda n: Masses(n, lambda batch, step: step._replace(truncated=np.zeros(n, np.bool_))),
        "an episode's end within max_steps=100, to see its observations; found none",
    ),
    "reset of some": (ResetsAll, r"the other observations unchanged by reset of \[2\]; found "),
    "seeds": (Unseeded, "the same obs from the same seeds and actions; found another one after 0 steps"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_batch_that_breaks_a_rule_is_refused_with_what_the_contract_asks(name: str) -> None:
    make, text = BROKEN[name]
    with pytest.raises(EnvFailure, match=f"^the contract of a batch asks for {text}"):
        check_batch(make, max_steps=100)


def test_actions_without_bounds_need_some() -> None:
    with pytest.raises(ConfigError, match="env.action_bounds"):
        check_batch(lambda n: TorchTwin(n, truncate_at=4))
