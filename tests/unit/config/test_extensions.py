"""Options of plug-ins are dataclasses, and a configuration's classes do not depend on how often they are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.config.extensions import network_options, sinks_options
from offpolicy.config.overrides import environment_ids, group_options, load_config
from offpolicy.errors import ConfigError
from offpolicy.plugins import ALGOS, ENVS, NETWORKS, SINKS
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


@pytest.fixture(autouse=True)
def _packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        SINKS: "good = plugs:GOOD\nbad = plugs:BAD\nmy-sink = plugs:GOOD\nasync = plugs:GOOD",
        NETWORKS: "net = plugs:NET\nplain = plugs:PLAIN",
        ENVS: "hop = plugs:PRESET\nant = plugs:PRESET",
        ALGOS: "td3 = plugs:GOOD\nodd = plugs:GOOD",
    }
    make_package(tmp_path, "plugs", TEXT, points)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_options_that_are_no_dataclass_of_ours_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"plugs 1.2 .*bad = plugs:BAD.*allowed a dataclass"):
        sinks_options(["bad"])
    with pytest.raises(ConfigError, match="allowed a dataclass that inherits from NetworkConfig"):
        network_options("plain")


@pytest.mark.parametrize("name", ["my-sink", "async"])
def test_a_sink_whose_name_cannot_have_options_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config([f"log.sinks=[{name}]"])
    (problem,) = refused.value.problems
    assert problem.startswith(f"log.sinks: plugs 1.2 (entry point offpolicy.sinks: {name} = plugs:GOOD): got the name")
    assert problem.endswith(
        "letters of a to z, digits and _, a letter first, and no keyword of Python: sinks.<name> has options"
    )


def test_an_unknown_name_is_answered_with_the_installed_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"log.sinks: got 'best', allowed a plug-in of offpolicy.sinks: async, bad, good"
    ):
        sinks_options(["best"])


def test_an_environment_of_a_plugin_is_an_option_like_ours() -> None:
    config = load_config(["env=hop", "algo=appo"])
    assert (config.env.id, config.total_timesteps) == ("Hopper-v5", 77000)
    assert config.algo == load_config(["env=hopper", "algo=appo"]).algo, "its family has tuned values"
    assert load_config(["env=hop", "total_timesteps=5000"]).total_timesteps == 5000
    assert environment_ids()["hop"] == "plugs:PRESET"
    assert "hop" in group_options()["env"]


def test_a_clash_is_refused_where_the_name_is_used_and_nowhere_else() -> None:
    assert load_config(["env=hopper"]).env.id == "Hopper-v5"
    with pytest.raises(ConfigError, match="env: ant is ours, and plugs 1.2"):
        load_config(["env=ant"])
    with pytest.raises(ConfigError, match="algo: td3 is ours, and plugs 1.2"):
        load_config(["algo=td3"])
