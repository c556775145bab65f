"""An id of a package that is not there is refused with what to install, and with what to write once it is."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.make import make_env
from offpolicy.envs.packages import PACKAGES, package_advice, package_of
from offpolicy.errors import ConfigError


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The packages that can be found; a test may add some."""
    names: set[str] = set()
    own = importlib.util.find_spec
    needed = {name for package in PACKAGES for name in package.needs}

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        if name in needed:
            return ModuleSpec(name, None) if name in names else None
        return own(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    return names


@pytest.mark.parametrize(
    ("env_id", "pip", "module"),
    [
        ("FetchReach-v4", "gymnasium-robotics", "gymnasium_robotics"),
        ("FetchPickAndPlaceDense-v4", "gymnasium-robotics", "gymnasium_robotics"),
        ("HandManipulateBlockRotateZ-v1", "gymnasium-robotics", "gymnasium_robotics"),
        ("PointMaze_UMaze-v3", "gymnasium-robotics", "gymnasium_robotics"),
        ("Meta-World/MT1", "metaworld", "metaworld"),
        ("dm_control/cartpole-swingup-v0", "shimmy[dm-control]", "shimmy"),
    ],
)
def test_what_to_install_and_what_to_write(installed: set[str], env_id: str, pip: str, module: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_env(EnvConfig(id=env_id))
    assert str(caught.value) == (
        f"env.id: got {env_id!r}, which comes with another package; type pip install '{pip}',"
        f" and write env.id={module}:{env_id}"
    )
    installed |= {name for package in PACKAGES for name in package.needs}
    assert package_advice(env_id) == f"which {module} registers; write env.id={module}:{env_id}"


@pytest.mark.parametrize("env_id", ["my_module:FetchReach-v4", "no_shimmy:dm_control/x-v0"])
def test_a_missing_module_of_the_user_is_named_whatever_its_id_looks_like(installed: set[str], env_id: str) -> None:
    module = env_id.partition(":")[0]
    with pytest.raises(ConfigError) as caught:
        make_env(EnvConfig(id=env_id))
    assert str(caught.value) == (
        f"env.id: got {env_id!r}: No module named {module!r}; looked in {os.getcwd()} and sys.path"
    )


def test_a_missing_module_of_a_known_package_is_one_to_install(installed: set[str]) -> None:
    with pytest.raises(ConfigError, match=r"got 'shimmy:dm_control/x-v0', .* type pip install 'shimmy\[dm-control\]'"):
        make_env(EnvConfig(id="shimmy:dm_control/x-v0"))


def test_an_id_that_the_module_of_the_user_does_not_register_is_not_one_of_a_package(
    installed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "my_module", ModuleType("my_module"))
    with pytest.raises(ConfigError) as caught:
        make_env(EnvConfig(id="my_module:FetchReach-v4"))
    assert "pip install" not in str(caught.value)
    assert "gymnasium_robotics" not in str(caught.value)


def test_shimmy_without_dm_control_needs_that(installed: set[str]) -> None:
    installed.add("shimmy")
    advice = package_advice("dm_control/cartpole-swingup-v0", "shimmy")
    assert advice is not None
    assert "pip install 'shimmy[dm-control]'" in advice


def test_a_package_is_not_advised_where_its_module_does_not_know_the_id(installed: set[str]) -> None:
    installed.add("metaworld")
    assert package_advice("Meta-World/None", "metaworld") is None


@pytest.mark.parametrize("env_id", ["Reacher-v5", "HandRotation-v1", "Ant-v5", "FetchMe-v0", "MetaWorld-v0"])
def test_ids_of_others_are_left_alone(env_id: str) -> None:
    assert package_of(env_id) is None
