"""Options of plug-ins are dataclasses, checked like ours; a name that cannot be used is refused where it is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.config.overrides import environments, group_options, load_config
from offpolicy.config.run_files import read_config, write_config
from offpolicy.config.schema import plugins_of
from offpolicy.errors import ConfigError
from offpolicy.logger.provenance import Provenance
from offpolicy.plugins import ALGOS, ENVS, NETWORKS, SINKS
from offpolicy.types import SpaceSpec
from tests.packages import make_package

TEXT = """
from dataclasses import dataclass
from offpolicy.config.extensions import EnvPreset, NetworkConfig, NetworkInfo, SinkInfo
from offpolicy.config.parsing import option
@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    path: str = option("x", "a file")
@dataclass(frozen=True, slots=True, kw_only=True)
class Net(NetworkConfig):
    width: int = option(4, "features", ge=1)
GOOD, BAD = SinkInfo("plugs:open", Options), SinkInfo("plugs:open", dict)
NET, PLAIN = NetworkInfo("plugs:Net", Net), NetworkInfo("plugs:Net", Options)
PRESET = EnvPreset({"env": {"id": "Hopper-v5"}, "total_timesteps": 77000}, family="mujoco")
"""
SPEC = SpaceSpec(3, 1, (-1.0,), (1.0,))
WORDS = ["log.sinks=[my-sink]", "sinks.my-sink.path=here", "algo.network.name=net", "algo.network.width=7"]


@pytest.fixture(autouse=True)
def _packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        SINKS: "bad = plugs:BAD\nmy-sink = plugs:GOOD",
        NETWORKS: "net = plugs:NET\nplain = plugs:PLAIN",
        ENVS: "hop = plugs:PRESET\nant = plugs:PRESET",
        ALGOS: "td3 = plugs:GOOD\nodd = plugs:GOOD",
    }
    make_package(tmp_path, "plugs", TEXT, points)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_options_of_plugins_are_checked_and_come_back_from_a_file(tmp_path: Path) -> None:
    config = load_config(WORDS)
    assert config.to_mapping()["sinks"] == {"my-sink": {"path": "here"}}
    assert config.to_mapping()["algo"]["network"] == {"name": "net", "width": 7}
    assert config.values_by_key()["sinks.my-sink.path"] == "here"
    labels = ["networks net of plugs 1.2", "sinks my-sink of plugs 1.2"]
    assert [plugin.label for plugin in plugins_of(config)] == labels
    write_config(tmp_path, config, SPEC)
    assert read_config(tmp_path) == config
    assert load_config(["log.sinks=[my-sink]"]).to_mapping()["sinks"] == {"my-sink": {"path": "x"}}


def test_every_problem_is_named_by_its_key() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(["log.sinks=[my-sink]", "sinks.my-sink.paht=1", "algo.network.name=net", "algo.network.width=0"])
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["algo.network.width", "sinks.my-sink.paht"]


def test_the_options_of_another_runs_sink_stay_with_that_run(tmp_path: Path) -> None:
    write_config(tmp_path, load_config(WORDS), SPEC)
    again = [f"config={tmp_path}/config.yaml"]
    for words in (["log.sinks=[]"], ["log.sinks=[my-sink]"]):
        assert load_config([*again, *words]).to_mapping()["sinks"] == {"my-sink": {"path": "here"}}


def test_a_run_of_a_plugin_that_is_gone_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(WORDS)
    write_config(tmp_path, config, SPEC)
    Provenance.of_this_process(0.0, ["train"]).note(tmp_path / "config.yaml", plugins_of(config))
    monkeypatch.setattr("offpolicy.plugins.installed", lambda group: ())
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path)
    assert f"{tmp_path / 'config.yaml'}: used the plug-in sinks my-sink of plugs 1.2; is it installed?" in (
        caught.value.problems
    )


def test_a_plugin_that_cannot_be_used_is_refused() -> None:
    for word, problem in (
        ("log.sinks=[bad]", r"plugs 1.2 .*bad = plugs:BAD.*allowed a dataclass"),
        ("log.sinks=[best]", r"log.sinks: got 'best', allowed a plug-in of offpolicy.sinks: bad, my-sink"),
        ("algo.network.name=plain", "allowed a dataclass that inherits from NetworkConfig"),
        ("env=ant", "env: ant is ours, and plugs 1.2"),
        ("algo=td3", "algo: td3 is ours, and plugs 1.2"),
    ):
        with pytest.raises(ConfigError, match=problem):
            load_config([word])
    assert load_config(["env=hopper"]).env.id == "Hopper-v5"


def test_an_environment_of_a_plugin_is_an_option_like_ours() -> None:
    config = load_config(["env=hop", "algo=appo"])
    assert (config.env.id, config.total_timesteps) == ("Hopper-v5", 77000)
    assert config.algo == load_config(["env=hopper", "algo=appo"]).algo, "its family has tuned values"
    assert load_config(["env=hop", "total_timesteps=5000"]).total_timesteps == 5000
    assert environments()["hop"] == "plugs:PRESET"
    assert "hop" in group_options()["env"]
