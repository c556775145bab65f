"""The mistakes that newcomers make: each is refused with its key and with a fix that works, never with a traceback."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from offpolicy import cli
from offpolicy.config.foreign_names import KEYS_BY_NAME, advice
from offpolicy.config.overrides import load_config
from offpolicy.config.sections import ALGORITHMS, AlgorithmInfo
from offpolicy.envs.make import find_spec
from offpolicy.errors import ConfigError

# The rest of the command, the mistake, the key that the refusal begins with, and the fix that it names.
MISTAKES = [
    # names of other trainers
    ("", "learning_rate=1e-3", "learning_rate", "algo.actor_lr=0.001 algo.critic_lr=0.001"),
    ("", "lr=3e-4", "lr", "algo.actor_lr=0.0003 algo.critic_lr=0.0003"),
    ("", "algo.learning_rate=1e-3", "algo.learning_rate", "algo.actor_lr=0.001 algo.critic_lr=0.001"),
    ("algo=td3", "algo.learning_rate=1e-3", "algo.learning_rate", "algo.actor_lr=0.001 algo.critic_lr=0.001"),
    ("algo=appo", "learning_rate=1e-3", "learning_rate", "algo.lr=0.001"),
    ("", "algo.lr=1e-3", "algo.lr", "algo.actor_lr=0.001 algo.critic_lr=0.001"),
    ("algo=appo", "algo.actor_lr=1e-3", "algo.actor_lr", "algo.lr=0.001"),
    ("", "learning_rate=fast", "learning_rate", "algo.actor_lr=0.0003 algo.critic_lr=0.0003"),
    ("", "policy_lr=1e-3", "policy_lr", "algo.actor_lr=0.001"),
    ("", "q_lr=1e-3", "q_lr", "algo.critic_lr=0.001"),
    ("", "buffer_size=1e6", "buffer_size", "replay.capacity=1000000"),
    ("", "replay_size=50000", "replay_size", "replay.capacity=50000"),
    ("", "train_freq=1", "train_freq", "algo.utd=1"),
    ("", "train_freq=4", "train_freq", "algo.utd=0.25"),
    ("", "gradient_steps=2", "gradient_steps", "algo.utd=2"),
    ("", "gradient_steps=-1", "gradient_steps", "algo.utd=1.0"),
    ("", "utd_ratio=4", "utd_ratio", "algo.utd=4"),
    ("", "n_envs=4", "n_envs", "env.num_envs=4"),
    ("", "num_envs=4", "num_envs", "env.num_envs=4"),
    ("", "num_workers=2", "num_workers", "collect.num_collectors=2"),
    ("", "total_steps=50000", "total_steps", "total_timesteps=50000"),
    ("", "timesteps=1e5", "timesteps", "total_timesteps=100000"),
    ("", "batch_size=128", "batch_size", "algo.batch_size=128"),
    ("", "gamma=0.98", "gamma", "algo.gamma=0.98"),
    ("", "tau=0.01", "tau", "algo.tau=0.01"),
    ("", "polyak=0.01", "polyak", "algo.tau=0.01"),
    ("", "learning_starts=500", "learning_starts", "algo.learning_starts=500"),
    ("", "start_steps=500", "start_steps", "algo.learning_starts=500"),
    ("", "net_arch=[64,64]", "net_arch", "algo.hidden_dims=[64,64]"),
    ("", "hidden_size=64", "hidden_size", "algo.hidden_dims=[64,64]"),
    ("", "policy_kwargs={net_arch:[64,64]}", "policy_kwargs.net_arch", "algo.hidden_dims=[64,64]"),
    ("algo=td3", "policy_noise=0.3", "policy_noise", "algo.target_noise=0.3"),
    ("algo=td3", "expl_noise=0.2", "expl_noise", "algo.exploration_noise=0.2"),
    ("algo=td3", "policy_freq=3", "policy_freq", "algo.policy_delay=3"),
    ("", "ent_coef=auto", "ent_coef", "algo.init_alpha=1.0"),
    ("", "alpha=0.2", "alpha", "algo.init_alpha=0.2"),
    ("", "algo.ent_coef=0.1", "algo.ent_coef", "algo.init_alpha=0.1"),
    ("algo=appo", "ent_coef=0.01", "ent_coef", "algo.ent_coef=0.01"),
    ("algo=appo", "clip_range=0.1", "clip_range", "algo.clip=0.1"),
    ("algo=appo", "n_epochs=5", "n_epochs", "algo.epochs=5"),
    ("algo=appo", "n_steps=256", "n_steps", "rollout.length=256"),
    ("", "n_steps=3", "n_steps", "algo.n_step=3"),
    ("algo=appo", "gae_lambda=0.9", "gae_lambda", "algo.gae_lambda=0.9"),
    ("algo=appo", "vf_coef=1", "vf_coef", "algo.value_coef=1"),
    ("", "env_id=Hopper-v5", "env_id", "env.id=Hopper-v5"),
    ("", "task=Hopper-v5", "task", "env.id=Hopper-v5"),
    ("", "max_episode_steps=100", "max_episode_steps", "env.kwargs.max_episode_steps=100"),
    ("", "eval_freq=1000", "eval_freq", "eval.every=1000"),
    ("", "n_eval_episodes=5", "n_eval_episodes", "eval.episodes=5"),
    ("", "save_freq=1000", "save_freq", "checkpoint.every=1000"),
    ("", "log_interval=4", "log_interval", "log.every_s=2.0"),
    ("", "tensorboard_log=out", "tensorboard_log", "run_dir=out"),
    ("", "exp_name=mine", "exp_name", "run_dir=mine"),
    ("", "cuda=true", "cuda", "device=cuda"),
    ("", "use_gpu=false", "use_gpu", "device=cpu"),
    ("", "track=true", "track", "log.wandb=online"),
    ("", "num_threads=2", "num_threads", "threads.learner=2"),
    ("", "verbose=0", "verbose", "log.panel=off"),
    ("algo=appo", "buffer_size=1000", "buffer_size", ""),
    # typing
    ("", "algo.gama=0.98", "algo.gama", "algo.gamma"),
    ("", "sead=3", "sead", "seed"),
    ("", "env.num_env=4", "env.num_env", "env.num_envs"),
    ("", "replay.capcity=5000", "replay.capcity", "replay.capacity"),
    ("", "eval.episode=3", "eval.episode", "eval.episodes"),
    ("", "algo=sca", "algo", "sac"),
    ("", "algo=SAC", "algo", "sac"),
    ("", "env=pendulm", "env", "pendulum"),
    ("", "env=HalfCheetah-v4", "env", "env.id=HalfCheetah-v4"),
    ("", "env=Hopper-v5", "env", "env.id=Hopper-v5"),
    ("", "env=my_envs:Maze-v0", "env", "env.id=my_envs:Maze-v0"),
    ("", "log.panel=of", "log.panel", "off"),
    ("", "collect.mode=alternat", "collect.mode", "alternate"),
    # the grammar of the command line
    ("", "--seed=3", "--seed=3", "seed=3"),
    ("", "--algo sac", "--algo sac", "algo=sac"),
    ("", "--total-timesteps 5000", "--total-timesteps 5000", "total_timesteps=5000"),
    ("", "--learning-rate 1e-3", "--learning-rate 1e-3", "algo.actor_lr=0.001 algo.critic_lr=0.001"),
    ("", "--algo.actor_lr=1e-3", "--algo.actor_lr=1e-3", "algo.actor_lr=1e-3"),
    ("", "--resume", "--resume", "resume=auto"),
    ("", "--multirun", "--multirun", ""),
    ("", "--config-name foo", "--config-name foo", "config=latest"),
    ("", "seed", "seed", "seed=1"),
    ("", "td3", "td3", "algo=td3"),
    ("", "halfcheetah", "halfcheetah", "env=halfcheetah"),
    ("", "Hopper-v5", "Hopper-v5", "env.id=Hopper-v5"),
    ("", "lr", "lr", "algo.actor_lr=0.0003 algo.critic_lr=0.0003"),
    ("", "~seed", "~seed", "seed=1"),
    ("", "seed=1,2,3", "seed=1,2,3", "seed=1"),
    ("", "algo=sac,td3", "algo=sac,td3", "algo=sac"),
    ("", "algo.name=sac,td3", "algo.name=sac,td3", "algo=sac"),
    ("", "seed=range(1,3)", "seed=range(1,3)", "seed=1"),
    ("", "algo.gamma=choice(0.9,0.99)", "algo.gamma=choice(0.9,0.99)", "algo.gamma=0.99"),
    ("", "algo=choice(sac,td3)", "algo=choice(sac,td3)", "algo=appo"),
    ("", "run_dir=glob(*)", "run_dir=glob(*)", "run_dir=runs/mine"),
    ("", "algo.hidden_dims=64,64", "algo.hidden_dims=64,64", "algo.hidden_dims=[64,64]"),
    ("", "run_dir=a,b", "run_dir=a,b", "run_dir='\"a,b\"'"),
    ("", "run_dir=a=b", "run_dir=a=b", "run_dir='\"a=b\"'"),
    ("", "algo.name=td3", "algo.name=td3", "algo=td3"),
    ("", "env=gym", "env.id", "env.id=Pendulum-v1"),
    # values that do not go together
    ("", "total_timesteps=100", "algo.learning_starts", "total_timesteps=100 algo.learning_starts=50"),
    ("algo=appo", "total_timesteps=100", "total_timesteps", "total_timesteps=100 rollout.length=12"),
    ("algo=appo", "total_timesteps=3", "total_timesteps", "total_timesteps=1024"),
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


def refusal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]) -> str:
    """Returns what `offpolicy train WORDS` says; fails if it would have trained."""
    monkeypatch.setattr(
        cli, "train_module", lambda: SimpleNamespace(train=lambda config, **_: pytest.fail("it trains"))
    )
    assert cli.main(["train", *words]) == 2
    return capsys.readouterr().err


def test_there_are_as_many_as_the_newcomer_made() -> None:
    assert len(MISTAKES) >= 98


@pytest.mark.parametrize(("rest", "mistake", "key", "fix"), MISTAKES, ids=lambda value: str(value) or "-")
def test_a_mistake_is_answered_with_its_key_and_a_fix(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rest: str, mistake: str, key: str, fix: str
) -> None:
    said = refusal(capsys, monkeypatch, [*rest.split(), *mistake.split()])
    assert f"\n  {key}" in said
    assert all(word in said for word in fix.split())
    assert "Traceback" not in said
    assert "<" not in said, "a placeholder cannot be typed"


@pytest.mark.parametrize(("rest", "mistake", "key", "fix"), WITH_FIX, ids=lambda value: str(value) or "-")
def test_the_fix_works(rest: str, mistake: str, key: str, fix: str) -> None:
    whole = TYPED.get(fix) or (fix if "=" in fix else f"{fix}={mistake.partition('=')[2]}")
    load_config([*rest.split(), *shlex.split(whole)])


@pytest.mark.slow
@pytest.mark.parametrize("info", ALGORITHMS, ids=lambda info: f"{info.name}-{info.stage}")
def test_what_is_said_of_a_foreign_name_can_be_typed_with_every_algorithm(info: AlgorithmInfo) -> None:
    chosen = [f"algo={info.name}", *(["stage=adapt", "teacher=x"] if info.stage == "adapt" else [])]
    said = [advice(name, None, info) or "" for name in KEYS_BY_NAME]
    for words in sorted({text.removeprefix("write ") for text in said if text.startswith("write ")}):
        load_config([*chosen, *words.split()])


@pytest.mark.parametrize(
    ("env_id", "fix"),
    [
        ("Pendlum-v1", "env.id=Pendulum-v1"),
        ("HalfCheetah-v9", "env.id=HalfCheetah-v5"),
        ("ALE/Pong-v5", "env.id=CartPole-v1 algo=appo"),
        ("offpolicy.envs.toy:PointMas-v0", "env.id=offpolicy.envs.toy:PointMass-v0"),
    ],
)
def test_an_unknown_environment_is_answered_with_one_that_exists(env_id: str, fix: str) -> None:
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
