"""The module of the runners, by name: the library does not depend on them."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType


def train_module() -> ModuleType:
    """Imports `offpolicy.runners.train`, as the wheel installs it, or the checkout's `runners.train`."""
    package = "offpolicy.runners" if importlib.util.find_spec("offpolicy.runners") else "runners"
    return importlib.import_module(f"{package}.train")
