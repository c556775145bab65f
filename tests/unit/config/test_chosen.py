"""The classes that names in a configuration choose, and which plug-ins those are."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.config.chosen import classes_of, plugins_of
from offpolicy.config.overrides import load_config
from offpolicy.config.schema import RunConfig, read_config, write_config
from offpolicy.errors import ConfigError
from offpolicy.logger.provenance import Provenance
from offpolicy.plugins import NETWORKS, SINKS
from offpolicy.types import SpaceSpec
from tests.packages import make_package
from tests.unit.config.test_extensions import TEXT

SPEC = SpaceSpec(3, 1, (-1.0,), (1.0,))
WORDS = ["log.sinks=[good]", "sinks.good.path=here", "algo.network.name=net", "algo.network.width=7"]


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_package(tmp_path, "plugs", TEXT, {SINKS: "good = plugs:GOOD", NETWORKS: "net = plugs:NET"})
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("packages")
def test_options_of_plugins_are_checked_and_come_back_from_a_file(tmp_path: Path) -> None:
    config = load_config(WORDS)
    assert config.to_mapping()["sinks"] == {"good": {"path": "here"}}
    assert [kind.__name__ for _, kind in classes_of(config)] == ["AlgoConfig", "Net", "SinksConfig"]
    assert [plugin.label for plugin in plugins_of(config)] == ["networks net of plugs 1.2", "sinks good of plugs 1.2"]
    write_config(tmp_path, config, SPEC)
    assert read_config(tmp_path) == config


@pytest.mark.usefixtures("packages")
def test_every_problem_is_named_by_its_key() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(["log.sinks=[good]", "sinks.good.paht=1", "algo.network.name=net", "algo.network.width=0"])
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["algo.network.width", "sinks.good.paht"]
    with pytest.raises(ConfigError, match=r"sinks.good: got options, but log.sinks does not name it; write log.sinks="):
        load_config(["sinks.good.path=here"])


@pytest.mark.usefixtures("packages")
def test_the_options_of_another_runs_sink_stay_with_that_run(tmp_path: Path) -> None:
    write_config(tmp_path, load_config(WORDS), SPEC)
    again = [f"config={tmp_path}/config.yaml"]
    assert load_config([*again, "log.sinks=[]"]).to_mapping()["sinks"] == {}
    assert load_config([*again, "log.sinks=[good]"]).to_mapping()["sinks"] == {"good": {"path": "here"}}
    with pytest.raises(ConfigError, match=r"sinks.good: got options, but log.sinks does not name it"):
        load_config([*again, "log.sinks=[]", "sinks.good.path=there"])


@pytest.mark.usefixtures("packages")
def test_a_run_of_a_plugin_that_is_gone_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(WORDS)
    write_config(tmp_path, config, SPEC)
    Provenance.of_this_process(0.0, ["train"]).note(tmp_path / "config.yaml", plugins_of(config))
    monkeypatch.setattr("offpolicy.plugins.installed", lambda group: ())
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path)
    assert f"{tmp_path / 'config.yaml'}: used the plug-in sinks good of plugs 1.2; is it installed?" in (
        caught.value.problems
    )


def test_a_run_without_plugins_has_our_classes() -> None:
    assert plugins_of(RunConfig()) == []
    assert all(declared is kind for declared, kind in classes_of(RunConfig()))
