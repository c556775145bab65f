"""The mistakes that newcomers make: each is refused with its key and with what to write, never with a traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from offpolicy.config.foreign_names import OURS
from offpolicy.config.overrides import load_config
from offpolicy.config.schema import specs
from offpolicy.envs.make import find_spec
from offpolicy.errors import ConfigError

# The mistake, the key that the refusal begins with, and what it says to write.
MISTAKES = [
    ("learning_rate=1e-3", "learning_rate", "algo.actor_lr"),
    ("algo.learning_rate=1e-3", "algo.learning_rate", "algo.actor_lr"),
    ("buffer_size=1e6", "buffer_size", "replay.capacity"),
    ("batch_size=128", "batch_size", "algo.batch_size"),
    ("policy_kwargs={net_arch:[64,64]}", "policy_kwargs", "algo.hidden_dims"),
    ("algo.gama=0.98", "algo.gama", "algo.gamma"),
    ("sead=3", "sead", "seed"),
    ("algo=sca", "algo", "sac"),
    ("algo=null", "algo", "sac"),
    ("env=pendulm", "env", "pendulum"),
    ("env=HalfCheetah-v4", "env", "env.id=HalfCheetah-v4"),
    ("log.panel=of", "log.panel", "off"),
    ("--seed=3", "--seed=3", "seed=3"),
    ("--resume", "--resume", "resume=..."),
    ("td3", "td3", "algo=td3"),
    ("~seed=1", "~seed=1", "a dotted key"),
    ("seed=1,2,3", "seed=1,2,3", "one run takes one value"),
    ("seed=range(1,3)", "seed=range(1,3)", "one run takes one value"),
    ("run_dir=a=b", "run_dir=a=b", "run_dir='\"a=b\"'"),
    ("run_dir=a\\b=c", "run_dir=a\\b=c", "run_dir='\"a\\b=c\"'"),
    ("algo.name=td3", "algo.name=td3", "algo=td3"),
    ("algo.stage=adapt", "algo.stage=adapt", "stage=adapt"),
    ("env=gym", "env.id", "env.id="),
    ("env.kwargs.nested={s: [{t: ???}]}", "env.kwargs.nested.s[0].t", "env.kwargs.nested.s[0].t="),
    ("run_dir=${nosuch}", "run_dir", "'nosuch' not found"),
    ("total_timesteps=100", "total_timesteps", "at least 1001"),
    ("env.kwargs.render_mode=human", "env.kwargs.render_mode", "offpolicy play RUN"),
    ("runner=appo", "runner", "single_gpu"),
    ("runner.world_size=2", "runner.world_size", "runner=multi_gpu"),
]


@pytest.mark.promise("refusals")
def test_a_mistake_is_answered_with_its_key_and_what_to_write() -> None:
    for mistake, key, fix in MISTAKES:
        with pytest.raises(ConfigError) as caught:
            load_config([mistake])
        (problem,) = caught.value.problems
        assert problem.startswith(f"{key}: "), mistake
        assert fix in problem, mistake


def test_a_name_of_another_trainer_leads_to_a_key_of_ours() -> None:
    keys = {key for text in OURS.values() for key in re.findall(r"[a-z]+\.[a-z_.]+|^\w+$", text)}
    assert [key for key in keys if key not in specs() and not key.startswith("env.kwargs.")] == []
    assert [name for name in OURS if name in specs()] == []


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
    saved = load_config(["algo=td3", "env=hopper", "algo.gamma=0.9", "run_dir=old", "resume=must"]).to_mapping()
    run = tmp_path / "runs/td3/Hopper-v5/one"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump(saved))
    monkeypatch.chdir(tmp_path)
    for word in ("latest", "one", f"{run}/config.yaml", str(run)):
        config = load_config([f"config={word}", "seed=7"])
        assert (config.algo.name, config.algo.gamma, config.env.id) == ("td3", 0.9, "Hopper-v5")
        assert (config.seed, config.run_dir, config.resume) == (7, None, "auto")
    with pytest.raises(ConfigError, match="algo: got 'sac', but config= has chosen the groups"):
        load_config(["config=latest", "algo=sac"])
