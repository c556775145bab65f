"""A loaded policy: shapes in and out, the environment's own actions, exploration, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.algos.registry import make_policy
from offpolicy.api.acting import LoadedPolicy
from offpolicy.api.runs import load
from offpolicy.commands.saved_run import SavedRun
from offpolicy.config.run_files import write_config
from offpolicy.config.schema import RunConfig
from offpolicy.errors import CheckpointError, ConfigError, NumericsError
from offpolicy.types import SpaceSpec

BOX = SpaceSpec(3, 2, (-2.0, 0.0), (2.0, 1.0))
DISCRETE = SpaceSpec(3, 1, (5.0,), (8.0,), num_actions=4)
PARTS = SpaceSpec(8, 1, (-1.0,), (1.0,), obs_keys=("a", "b/c"), obs_shapes=((2,), (2, 3)))
HORA = SpaceSpec(
    *(98, 2, (-1.0, -1.0), (1.0, 1.0)), obs_keys=("obs", "privileged", "proprio_hist"), obs_shapes=((3,), (5,), (30, 3))
)


def loaded(spec: SpaceSpec, **algo: Any) -> LoadedPolicy:
    """The policy of a run that was saved right at its beginning."""
    others: dict[str, Any] = {"runner": {"name": "appo"}} if algo else {}
    others |= {"teacher": "runs/teacher"} if algo.get("stage") == "adapt" else {}
    config = RunConfig.from_mapping({"algo": algo, **others})
    torch.manual_seed(3)
    network = make_policy(config.algo, spec)
    saved = SimpleNamespace(
        path=Path("run"), checkpoint=SimpleNamespace(env_steps=7), spec=spec, policy=lambda: network
    )
    return LoadedPolicy(saved, 0)  # type: ignore[arg-type]  # what it reads of a saved run


def test_one_observation_has_one_action_and_many_have_many() -> None:
    policy, obs = loaded(BOX), np.ones((4, 3))
    assert policy(obs[0]).shape == (2,)
    assert policy(obs).shape == (4, 2)
    assert policy(obs[:1]).shape == (1, 2)
    np.testing.assert_array_equal(policy(obs[2]), policy(obs[2].tolist()))
    # A product of one row may add in another order than one of many rows: that changes the last bits.
    np.testing.assert_allclose(policy(obs)[2], policy(obs[2]), rtol=1e-6)


@pytest.mark.promise("action-space", "python")
def test_actions_are_in_the_environments_bounds() -> None:
    policy = loaded(BOX)
    actions = policy(np.random.default_rng(0).normal(size=(500, 3)) * 100, deterministic=False)
    assert actions.dtype == np.float32
    assert (actions >= [-2.0, 0.0]).all()
    assert (actions <= [2.0, 1.0]).all()
    assert actions[:, 1].max() > 0.9
    assert actions[:, 0].min() < -1.8


def test_exploration_draws_and_the_deterministic_action_does_not() -> None:
    policy, obs = loaded(BOX), np.zeros(3)
    assert (policy(obs) == policy(obs)).all()
    assert (policy(obs, deterministic=False) != policy(obs, deterministic=False)).all()
    first = [loaded(BOX)(obs, deterministic=False).tolist() for _ in range(2)]
    assert first[0] == first[1], "of the same seed"


def test_discrete_actions_are_numbers_of_the_environment() -> None:
    policy = loaded(DISCRETE, name="appo")
    one, many = policy(np.zeros(3)), policy(np.random.default_rng(0).normal(size=(50, 3)), deterministic=False)
    assert (one.shape, one.dtype) == ((), np.int64)
    assert many.shape == (50,)
    assert set(many.tolist()) == {5, 6, 7, 8}


def test_parts_of_a_dict_observation_are_found_by_name_also_nested() -> None:
    policy, box = loaded(PARTS), np.arange(6.0).reshape(2, 3)
    nested = {"b": {"c": box}, "a": np.zeros(2)}
    assert policy(nested).shape == (1,)
    flat, is_one = policy.flatten(nested)
    assert is_one
    assert flat.tolist() == [[0, 0, 0, 1, 2, 3, 4, 5]]
    numbered = loaded(replace(PARTS, obs_keys=("1", "2/3")))
    assert numbered({1: np.zeros(2), 2: {3: box}}).tolist() == policy(nested).tolist()
    assert policy({"b/c": np.stack([box] * 5), "a": np.zeros((5, 2))}).shape == (5, 1)


def test_parts_that_the_actor_does_not_read_may_be_missing() -> None:
    """On a robot nothing measures what is privileged."""
    rng, parts = np.random.default_rng(0), dict(zip(HORA.obs_keys, HORA.obs_shapes, strict=True))
    whole = {name: rng.normal(size=(2, *shape)) for name, shape in parts.items()}
    algos: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"name": "hora", "stage": "adapt"}, ("obs", "proprio_hist")),
        ({"name": "hora"}, ("obs", "privileged")),
        ({"name": "appo", "actor_input": "obs"}, ("obs",)),
    ]
    for algo, names in algos:
        policy, read = loaded(HORA, **algo), {name: whole[name] for name in names}
        np.testing.assert_array_equal(policy(read), policy(whole))
        with pytest.raises(ConfigError, match="allowed a mapping with 'obs'"):
            policy({name: part for name, part in read.items() if name != "obs"})


def test_other_shapes_and_nan_are_refused() -> None:
    policy = loaded(BOX)
    for obs, problem in (
        ([1.0, 2.0], r"obs: got an array of the shape \(2,\), allowed \[3\] or \[N, 3\]"),
        (np.zeros((2, 4)), r"got an array of the shape \(2, 4\)"),
        ("left", "got a str"),
        ({"a": 1}, "got a dict"),
    ):
        with pytest.raises(ConfigError, match=problem):
            policy(obs)
    with pytest.raises(NumericsError, match="holds NaN or Inf"):
        policy([0.0, np.nan, 0.0])


def test_a_missing_part_is_named() -> None:
    with pytest.raises(ConfigError, match="got the keys a, allowed a mapping with 'b/c'"):
        loaded(PARTS)({"a": np.zeros(2)})
    with pytest.raises(ConfigError, match="different numbers of observations"):
        loaded(PARTS)({"a": np.zeros((4, 2)), "b/c": np.zeros((5, 2, 3))})


def test_a_run_that_names_code_in_its_own_directory_needs_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "evil.py").write_text("raise SystemExit(3)")
    write_config(run, RunConfig.from_mapping({"env": {"id": "evil:Env-v0"}}), BOX)
    monkeypatch.syspath_prepend(str(run))
    with pytest.raises(ConfigError, match=r"evil would run .*evil.py, which lies inside the run's directory"):
        load(run)
    with pytest.raises(CheckpointError, match="holds no usable checkpoint"):
        load(run, trust=True)


def test_other_seeds_and_steps_than_whole_numbers_are_refused(tmp_path: Path) -> None:
    given: list[dict[str, Any]] = [{"seed": -1}, {"step": "300"}, {"seed": None}]
    for options in given:
        with pytest.raises(ConfigError, match=rf"^{next(iter(options))}: got .*, allowed a whole number in \[0, inf\)"):
            load(tmp_path, **options)


def test_observations_of_a_box_of_a_higher_rank_have_its_shape_or_are_flat() -> None:
    """A transposed one has as many values, and was taken for another observation; a frame stack of 1 is one."""
    for shape, others in (((1, 3), [(4, 2)]), ((2, 3), [(3, 2), (4, 3, 2), (6, 1), (4, 2, 3, 1)])):
        size = shape[0] * shape[1]
        policy = loaded(replace(BOX, obs_dim=size, box_shape=shape))
        for one in (shape, (size,)):
            assert policy(np.ones(one)).shape == (2,)
            assert policy(np.ones((4, *one))).shape == (4, 2)
        for other in others:
            with pytest.raises(ConfigError, match=r"obs: got an array of the shape .*, allowed \[\d, 3\] or \[N, \d"):
                policy(np.ones(other))


def test_actions_have_the_shape_of_their_space() -> None:
    """Runs of before do not know it: their actions are rows."""
    scalar = {"action_dim": 1, "action_low": (-1.0,), "action_high": (1.0,)}
    assert loaded(replace(BOX, **scalar, action_shape=()))(np.ones(3)).shape == ()
    four = {"action_dim": 4, "action_low": (-1.0,) * 4, "action_high": (1.0,) * 4}
    rows, shaped = loaded(replace(BOX, **four)), loaded(replace(BOX, **four, action_shape=(2, 2)))
    obs = np.arange(15.0).reshape(5, 3)
    assert shaped(obs[0]).shape == (2, 2)
    np.testing.assert_array_equal(shaped(obs), rows(obs).reshape(5, 2, 2))


def test_a_policy_explores_as_it_did_at_the_step_of_its_checkpoint() -> None:
    ramp = {"start": 0.5, "end": 0.0, "over": 5000}
    cfg = RunConfig.from_mapping({"algo": {"name": "td3", "exploration_noise": ramp, "learning_starts": 100}})
    names = make_policy(cfg.algo, BOX).state_dict()
    for env_steps, noise in ((0, 0.5), (2600, 0.25), (20_000, 0.0)):
        checkpoint: Any = SimpleNamespace(env_steps=env_steps)
        policy = SavedRun(Path("run"), cfg, BOX, checkpoint, names, cfg.env, 0, "cpu").policy()
        assert policy.actor.exploration_noise == pytest.approx(noise)
