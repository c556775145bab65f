"""The mistakes that newcomers make: each is refused with its key and with a fix that works, never with a traceback."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from offpolicy.config.foreign_names import KEYS_BY_NAME, advice
from offpolicy.config.overrides import load_config
from offpolicy.config.sections import ALGORITHMS
from offpolicy.envs.make import find_spec
from offpolicy.errors import ConfigError

# The rest of the command, the mistake, the key that the refusal begins with, and the fix that it names.
MISTAKES = [
    # names of other trainers
    ("", "learning_rate=1e-3", "learning_rate", "algo.actor_lr=0.001 algo.critic_lr=0.001"),
    ("", "algo.learning_rate=1e-3", "algo.learning_rate", "algo.actor_lr=0.001 algo.critic_lr=0.001"),
    ("algo=appo", "learning_rate=1e-3", "learning_rate", "algo.lr=0.001"),
    ("algo=appo", "algo.actor_lr=1e-3", "algo.actor_lr", "algo.lr=0.001"),
    ("", "learning_rate=fast", "learning_rate", "algo.actor_lr=0.0003 algo.critic_lr=0.0003"),
    ("", "q_lr=1e-3", "q_lr", "algo.critic_lr=0.001"),
    ("", "buffer_size=1e6", "buffer_size", "replay.capacity=1000000"),
    ("", "train_freq=4", "train_freq", "algo.utd=0.25"),
    ("", "gradient_steps=-1", "gradient_steps", "algo.utd=1.0"),
    ("", "utd_ratio=4", "utd_ratio", "algo.utd=4"),
    ("", "n_envs=4", "n_envs", "env.num_envs=4"),
    ("", "num_workers=2", "num_workers", "collect.num_collectors=2"),
    ("", "timesteps=1e5", "timesteps", "total_timesteps=100000"),
    ("", "batch_size=128", "batch_size", "algo.batch_size=128"),
    ("", "start_steps=500", "start_steps", "algo.learning_starts=500"),
    ("", "net_arch=[64,64]", "net_arch", "algo.hidden_dims=[64,64]"),
    ("", "hidden_size=64", "hidden_size", "algo.hidden_dims=[64,64]"),
    ("", "policy_kwargs={net_arch:[64,64]}", "policy_kwargs.net_arch", "algo.hidden_dims=[64,64]"),
    ("algo=td3", "policy_noise=0.3", "policy_noise", "algo.target_noise=0.3"),
    ("", "ent_coef=auto", "ent_coef", "algo.init_alpha=1.0"),
    ("algo=appo", "ent_coef=0.01", "ent_coef", "algo.ent_coef=0.01"),
    ("algo=appo", "clip_range=0.1", "clip_range", "algo.clip=0.1"),
    ("algo=appo", "n_steps=256", "n_steps", "rollout.length=256"),
    ("", "n_steps=3", "n_steps", "algo.n_step=3"),
    ("", "env_id=Hopper-v5", "env_id", "env.id=Hopper-v5"),
    ("", "max_episode_steps=100", "max_episode_steps", "env.kwargs.max_episode_steps=100"),
    ("", "eval_freq=1000", "eval_freq", "eval.every=1000"),
    ("", "tensorboard_log=out", "tensorboard_log", "run_dir=out"),
    ("", "cuda=true", "cuda", "device=cuda"),
    ("", "track=true", "track", "log.wandb=online"),
    ("", "verbose=0", "verbose", "log.panel=off"),
    ("algo=appo", "buffer_size=1000", "buffer_size", ""),
    # typing
    ("", "algo.gama=0.98", "algo.gama", "algo.gamma"),
    ("", "sead=3", "sead", "seed"),
    ("", "algo=sca", "algo", "sac"),
    ("", "env=pendulm", "env", "pendulum"),
    ("", "env=HalfCheetah-v4", "env", "env.id=HalfCheetah-v4"),
    ("", "env=my_envs:Maze-v0", "env", "env.id=my_envs:Maze-v0"),
    ("", "log.panel=of", "log.panel", "off"),
    # the grammar of the command line
    ("", "--seed=3", "--seed=3", "seed=3"),
    ("", "--algo sac", "--algo sac", "algo=sac"),
    ("", "--learning-rate 1e-3", "--learning-rate 1e-3", "algo.actor_lr=0.001 algo.critic_lr=0.001"),
    ("", "--algo.actor_lr=1e-3", "--algo.actor_lr=1e-3", "algo.actor_lr=1e-3"),
    ("", "--resume", "--resume", "resume=auto"),
    ("", "--config-name foo", "--config-name foo", "config=latest"),
    ("", "seed", "seed", "seed=1"),
    ("", "td3", "td3", "algo=td3"),
    ("", "Hopper-v5", "Hopper-v5", "env.id=Hopper-v5"),
    ("", "lr", "lr", "algo.actor_lr=0.0003 algo.critic_lr=0.0003"),
    ("", "~seed", "~seed", "seed=1"),
    ("", "seed=1,2,3", "seed=1,2,3", "seed=1"),
    ("", "seed=range(1,3)", "seed=range(1,3)", "seed=1"),
    ("", "algo.gamma=choice(0.9,0.99)", "algo.gamma=choice(0.9,0.99)", "algo.gamma=0.99"),
    ("", "run_dir=glob(*)", "run_dir=glob(*)", "run_dir=runs/mine"),
    ("", "algo.hidden_dims=64,64", "algo.hidden_dims=64,64", "algo.hidden_dims=[64,64]"),
    ("", "run_dir=a=b", "run_dir=a=b", "run_dir='\"a=b\"'"),
    ("", "algo.name=td3", "algo.name=td3", "algo=td3"),
    ("", "env=gym", "env.id", "env.id=Pendulum-v1"),
    # values that do not go together
    ("", "total_timesteps=100", "algo.learning_starts", "total_timesteps=100 algo.learning_starts=50"),
    ("algo=appo", "total_timesteps=100", "total_timesteps", "total_timesteps=100 rollout.length=12"),
    ("", "env.kwargs.render_mode=human", "env.kwargs.render_mode", ""),
    ("", "runner=appo", "runner", "single_gpu"),
    ("", "runner.world_size=2", "runner.world_size", "runner=multi_gpu"),
]
# Fixes that are the value alone, as they are typed; a fix that is a key alone is typed with the value that was given.
TYPED = {
    "sac": "algo=sac",
    "pendulum": "env=pendulum",
    "off": "log.panel=off",
    "alternate": "collect.mode=alternate",
    "single_gpu": "runner=single_gpu",
}
NEEDS_RUNS = ("config=latest",)  # tested below, where there are runs
WITH_FIX = [row for row in MISTAKES if row[3] and row[3] not in NEEDS_RUNS]


@pytest.mark.promise("refusals")
def test_a_mistake_is_answered_with_its_key_and_a_fix() -> None:
    for rest, mistake, key, fix in MISTAKES:
        with pytest.raises(ConfigError) as caught:
            load_config([*rest.split(), *mistake.split()])
        said = "\n".join(caught.value.problems)
        assert any(problem.startswith(key) for problem in caught.value.problems), mistake
        assert all(word in said for word in fix.split()), mistake
        assert "<" not in said, "a placeholder cannot be typed"


def test_the_fix_works() -> None:
    for rest, mistake, _, fix in WITH_FIX:
        whole = TYPED.get(fix) or (fix if "=" in fix else f"{fix}={mistake.partition('=')[2]}")
        load_config([*rest.split(), *shlex.split(whole)])


@pytest.mark.slow
def test_what_is_said_of_a_foreign_name_can_be_typed_with_every_algorithm() -> None:
    for info in ALGORITHMS:
        chosen = [f"algo={info.name}", *(["stage=adapt", "teacher=x"] if info.stage == "adapt" else [])]
        said = [advice(name, None, info) or "" for name in KEYS_BY_NAME]
        for words in sorted({text.removeprefix("write ") for text in said if text.startswith("write ")}):
            load_config([*chosen, *words.split()])


def test_an_unknown_environment_is_answered_with_one_that_exists() -> None:
    for env_id, fix in (
        ("Pendlum-v1", "env.id=Pendulum-v1"),
        ("HalfCheetah-v9", "env.id=HalfCheetah-v5"),
        ("ALE/Pong-v5", "env.id=CartPole-v1 algo=appo"),
        ("offpolicy.envs.toy:PointMas-v0", "env.id=offpolicy.envs.toy:PointMass-v0"),
    ):
        with pytest.raises(ConfigError) as caught:
            find_spec(env_id)
        assert f"env.id: got {env_id!r}" in str(caught.value)
        assert f"write {fix}" in str(caught.value)
        find_spec(load_config(fix.split()).env.id)


def test_a_run_is_started_from_the_configuration_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = load_config(["algo=td3", "env=hopper", "algo.gamma=0.9", "run_dir=old"]).to_mapping()
    run = tmp_path / "runs/td3/Hopper-v5/one"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump(saved))
    monkeypatch.chdir(tmp_path)
    for word in ("latest", "one", f"{run}/config.yaml", str(run)):
        config = load_config([f"config={word}", "seed=7"])
        assert (config.algo.name, config.algo.gamma, config.env.id) == ("td3", 0.9, "Hopper-v5")
        assert (config.seed, config.run_dir) == (7, None)
    with pytest.raises(ConfigError, match="algo: got 'sac', but config= has chosen the groups"):
        load_config(["config=latest", "algo=sac"])
    with pytest.raises(ConfigError, match=r"start from the configuration of a run with config=.*config\.yaml"):
        load_config([f"{run}/config.yaml"])
