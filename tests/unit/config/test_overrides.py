"""Overrides compose with the promised precedence; every wrong one is refused with what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.config.overrides import as_override, load_config, load_values
from offpolicy.errors import ConfigError


def problems(*tokens: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_config(tokens)
    return caught.value.problems


def test_no_override_trains_sac_on_pendulum() -> None:
    config = load_config([])
    assert (config.algo.name, config.env.id, config.total_timesteps) == ("sac", "Pendulum-v1", 20_000)


def test_groups_and_values_are_composed() -> None:
    tokens = ["algo=td3", "env=halfcheetah", "seed=3", "env.num_envs=8", "algo.hidden_dims=[64,64]", "algo.tau=1e-2"]
    config = load_config(tokens)
    assert (config.algo.name, config.algo.policy_delay, config.env.id) == ("td3", 2, "HalfCheetah-v5")
    assert (config.seed, config.env.num_envs, config.algo.hidden_dims, config.algo.tau) == (3, 8, (64, 64), 0.01)


def test_the_id_may_be_given_with_any_group() -> None:
    assert load_config(["env=halfcheetah", "env.id=my_module:Hand-v0"]).env.id == "my_module:Hand-v0"


def test_kwargs_of_the_environment_are_free_and_need_no_plus() -> None:
    config = load_config(["env.kwargs.g=9.5", "env.kwargs.nested.deep=[a,2]", "env.kwargs={flag: true}"])
    assert config.env.kwargs == {"g": 9.5, "nested": {"deep": ["a", 2]}, "flag": True}


def test_the_algorithm_of_an_experiment_may_have_its_second_stage() -> None:
    config = load_config(["experiment=hora_many_cores", "stage=adapt", "teacher=runs/teacher"])
    assert (config.algo.stage, config.env.num_envs, config.algo.lr) == ("adapt", 4096, 1e-3)


@pytest.fixture
def tiny_conf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A conf/ where each level sets one key more than the level below it leaves to it."""
    files = {
        "config": "defaults: [{algo: a}, {env: e}, {experiment: null}, _self_]",
        "algo/a": "tau: 0.1\ngamma: 0.1\nactor_lr: 0.1\ncritic_lr: 0.1",
        "env/e": "# @package _global_\nalgo: {gamma: 0.2, actor_lr: 0.2, critic_lr: 0.2}",
        "experiment/x": "# @package _global_\nalgo: {actor_lr: 0.3, critic_lr: 0.3}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(text)
    monkeypatch.setattr("offpolicy.config.overrides.conf_dir", lambda: tmp_path)


@pytest.fixture
def tiny_pair(tiny_conf: None, tmp_path: Path) -> None:
    """The same with a file for algorithm `a` in environment `e`, and none for it in `f`."""
    config = "defaults: [{algo: a}, {env: e}, {optional algo_env: '${algo}_${env}'}, {experiment: null}, _self_]"
    (tmp_path / "config.yaml").write_text(config)
    (tmp_path / "env/f.yaml").write_text("# @package _global_\nalgo: {gamma: 0.5}")
    (tmp_path / "algo_env").mkdir()
    (tmp_path / "algo_env/a_e.yaml").write_text(
        "# @package _global_\nalgo: {gamma: 0.25, actor_lr: 0.25, critic_lr: 0.25}"
    )


@pytest.mark.usefixtures("tiny_pair")
@pytest.mark.parametrize(
    ("tokens", "values"),
    [
        ([], (0.1, 0.25, 0.25, 0.25)),
        (["experiment=x"], (0.1, 0.25, 0.3, 0.3)),
        (["algo.critic_lr=0.4", "experiment=x"], (0.1, 0.25, 0.3, 0.4)),
        (["algo.gamma=0.4"], (0.1, 0.4, 0.25, 0.25)),
        (["env=f"], (0.1, 0.5, 0.1, 0.1)),
    ],
)
def test_command_line_beats_experiment_beats_algo_env_beats_env(tokens: list[str], values: tuple[float, ...]) -> None:
    algo = load_config(tokens).algo
    assert (algo.tau, algo.gamma, algo.actor_lr, algo.critic_lr) == values


def test_appo_brings_its_runner_and_many_environments() -> None:
    config = load_config(["algo=appo", "env=gym", "env.id=Pendulum-v1"])
    assert (config.algo.name, config.runner.name, config.env.num_envs) == ("appo", "appo", 8)


def test_values_of_appo_for_an_environment_are_loaded_with_it_and_yields_to_the_command_line() -> None:
    own, other = load_config(["algo=appo", "env=pendulum"]), load_config(["algo=sac", "env=pendulum"])
    assert (own.algo.gamma, own.algo.lr_schedule, other.algo.gamma) == (0.95, "linear", 0.99)
    assert load_config(["algo=appo", "env=pendulum", "algo.gamma=0.5"]).algo.gamma == 0.5


def test_a_runner_that_cannot_carry_the_algorithm_is_refused() -> None:
    assert problems("algo=appo", "runner=single_gpu") == ("runner: got single_gpu, allowed appo with algo=appo",)
    assert problems("runner=appo") == (
        "runner: got appo, allowed single_gpu, double_buffer or multi_gpu with algo=sac",
    )


def test_the_last_of_two_overrides_wins() -> None:
    assert load_config(["seed=1", "algo=td3", "seed=2", "algo=sac"]).seed == 2


def test_references_to_other_keys_are_filled_in() -> None:
    config = load_config(["run_dir=out/${algo.name}-${seed}", "seed=4"])
    assert config.run_dir == "out/sac-4"


def test_every_problem_is_reported_at_once() -> None:
    found = problems("algo=sca", "--seed=3", "td3", "algo.gama=1", "nosuch=1", "algo.gamma=3", "run_dir=${no}")
    starts = ["algo: ", "--seed=3: ", "td3: ", "nosuch: ", "algo.gama: ", "algo.gamma: ", "run_dir: "]
    assert len(found) == len(starts)
    assert [start for start in starts if any(problem.startswith(start) for problem in found)] == starts


def test_a_resumed_run_takes_values_but_no_groups() -> None:
    assert load_values(["total_timesteps=50000", "log.panel=off"]) == {
        "total_timesteps": 50_000,
        "log": {"panel": "off"},
    }
    with pytest.raises(ConfigError, match="algo: got 'td3', but a saved run keeps its groups"):
        load_values(["algo=td3"])


def test_a_value_is_written_so_that_it_is_read_again() -> None:
    texts = ("a", "1", "1e-3", "null", "true", "a,b", "a b", "'x'", '"q"', "", "~/x", "a\\", 'a\\"b', "[1]", "x:y", "é")
    for value in (*texts, None, True, 3e-4, 1e-5, [1, "b,c"], {"a": ["x=y"]}):
        assert load_config([f"env.kwargs.x={as_override(value)}"]).env.kwargs["x"] == value
