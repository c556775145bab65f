"""The runners, by name: the library does not depend on them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import uuid
from types import ModuleType

from offpolicy.machine import has_gpu
from offpolicy.processes.fork_server import LONG_SPIN_ROUNDS, SPIN_ROUNDS, ForkServer

# What the processes of a run need, whatever its configuration; a probe needs the first only.
LIBRARY = ("offpolicy.envs.probe", "torch")
RUNNERS = ("single_gpu", "double_buffer", "multi_gpu", "appo", "collector", "evaluator")


def run_server(spin_rounds: int | None = None) -> ForkServer:
    """Returns the fork server of a run; without `spin_rounds` it has those that most runs on this machine need.

    The run's id marks every process of it, and what they start; a caller may have chosen it.
    """
    if spin_rounds is None:
        spin_rounds = SPIN_ROUNDS if has_gpu() else LONG_SPIN_ROUNDS
    environment = {**os.environ, "OFFPOLICY_RUN_ID": os.environ.get("OFFPOLICY_RUN_ID") or uuid.uuid4().hex}
    modules = (*LIBRARY, *(f"{_package()}.{name}" for name in RUNNERS))
    return ForkServer(modules, environment, spin_rounds)


def train_module() -> ModuleType:
    """Imports `offpolicy.runners.train`, as the wheel installs it, or the checkout's `runners.train`."""
    return importlib.import_module(f"{_package()}.train")


def _package() -> str:
    return "offpolicy.runners" if importlib.util.find_spec("offpolicy.runners") else "runners"
