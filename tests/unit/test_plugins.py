"""Entry points of other packages: found by name, imported when used, refused with package and entry point."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from offpolicy import plugins
from offpolicy.errors import ConfigError
from offpolicy.plugins import ALGOS, Plugin
from tests.packages import make_package


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of packages on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_plugin_is_found_without_an_import_and_says_where_it_is_from(site: Path) -> None:
    make_package(site, "mypkg_a", "VALUE = 3", {ALGOS: "mine = mypkg_a:VALUE"})
    plugin = plugins.find(ALGOS, "mine", "algo")
    assert plugin == Plugin(ALGOS, "mine", "mypkg_a:VALUE", "mypkg_a", "1.2")
    assert plugins.names(ALGOS) == ("mine",)
    assert str(plugin) == "mypkg_a 1.2 (entry point offpolicy.algos: mine = mypkg_a:VALUE)"
    assert plugin.label == "algos mine of mypkg_a 1.2"
    assert "mypkg_a" not in sys.modules
    assert plugins.load(plugin, int) == plugins.resolve(plugin, "mypkg_a:VALUE") == 3
    with pytest.raises(ConfigError, match=r"mypkg_a 1.2 .*: mypkg_a.deep:rule cannot be imported"):
        plugins.resolve(plugin, "mypkg_a.deep:rule")


def test_a_name_of_ours_and_a_name_of_two_packages_are_refused(site: Path) -> None:
    make_package(site, "mypkg_b", "", {ALGOS: "sac = mypkg_b:X\nbest = mypkg_b:X"})
    make_package(site, "mypkg_c", "", {ALGOS: "best = mypkg_c:X"})
    with pytest.raises(ConfigError, match=r"algo: sac is ours, and mypkg_b 1.2 \(entry point .* gives it too"):
        plugins.find(ALGOS, "sac", "algo", ours=["sac", "td3"])
    with pytest.raises(ConfigError, match=r"best is given by mypkg_b 1.2 .* and by mypkg_c 1.2"):
        plugins.find(ALGOS, "best", "algo")
    assert plugins.find(ALGOS, "other", "algo") is None, "only what is used is refused"


def test_one_that_cannot_be_used_is_named(site: Path) -> None:
    for index, (text, problem) in enumerate(
        [
            ("import no_such_module_at_all", "cannot be imported: ModuleNotFoundError"),
            ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
            ("", "cannot be imported: AttributeError"),
            ("X = 'text'", "is a str, allowed a builtins.int"),
        ]
    ):
        name = f"mypkg_d{index}"
        make_package(site, name, text, {ALGOS: f"broken_{index} = {name}:X"})
        plugin = plugins.find(ALGOS, f"broken_{index}", "algo")
        assert plugin is not None
        named = f"{name} 1.2 .*entry point offpolicy.algos: broken_{index} = {name}:X"
        with pytest.raises(ConfigError, match=f"{named}.*{problem}"):
            plugins.load(plugin, int)
