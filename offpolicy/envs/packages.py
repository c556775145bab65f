"""Packages whose environments docs/environments.md has recipes for, by the ids that they register."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from typing import NamedTuple


class EnvPackage(NamedTuple):
    """A package of environments."""

    pip: str  # what pip installs
    module: str  # what registers the ids
    needs: Sequence[str]  # modules without which it does not
    ids: str  # pattern of the ids


PACKAGES = (
    EnvPackage("shimmy[dm-control]", "shimmy", ("shimmy", "dm_control"), r"dm_control/.+"),
    EnvPackage("metaworld", "metaworld", ("metaworld",), r"Meta-World/.+"),
    EnvPackage(
        "gymnasium-robotics",
        "gymnasium_robotics",
        ("gymnasium_robotics",),
        r"(Fetch(Reach|Push|Slide|PickAndPlace)|Hand(Reach|Manipulate)|AdroitHand|PointMaze_|AntMaze_|FrankaKitchen).*",
    ),
)


def package_of(env_id: str) -> EnvPackage | None:
    """Returns the package that registers an id without a module; None if none of ours does."""
    return next((package for package in PACKAGES if re.fullmatch(package.ids, env_id)), None)


def package_advice(env_id: str, module: str = "") -> str | None:
    """Returns what to install or write for an id that is not registered; None where that is not known.

    `module` is the one before the id, if there was any. A package is advised once: not after its module was imported.
    An id of another module is that module's, whatever it looks like: users register variants under similar names.
    """
    package = package_of(env_id)
    if package is None or module not in ("", package.module):
        return None
    written = f"env.id={package.module}:{env_id}"
    if any(importlib.util.find_spec(name) is None for name in package.needs):
        return f"which comes with another package; type pip install '{package.pip}', and write {written}"
    return None if module == package.module else f"which {package.module} registers; write {written}"
