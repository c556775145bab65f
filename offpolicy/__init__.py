"""Off-policy reinforcement learning with decomposed timing.

What follows is imported when it is first used (PEP 562): `import offpolicy` itself loads nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offpolicy.api.acting import LoadedPolicy
    from offpolicy.api.evaluation import Comparison, Evaluation, compare, evaluate
    from offpolicy.api.runs import TrainedRun, load
    from offpolicy.api.training import configure, train
    from offpolicy.config.overrides import algorithms, environments
    from offpolicy.config.schema import RunConfig
    from offpolicy.errors import ConfigError, Interrupted, OffPolicyError
    from offpolicy.logger.callbacks import Callback

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "Comparison",
    "ConfigError",
    "Evaluation",
    "Interrupted",
    "LoadedPolicy",
    "OffPolicyError",
    "RunConfig",
    "TrainedRun",
    "__version__",
    "algorithms",
    "compare",
    "configure",
    "environments",
    "evaluate",
    "load",
    "train",
]
_MODULES = {
    "LoadedPolicy": "api.acting",
    **dict.fromkeys(("algorithms", "environments"), "config.overrides"),
    **dict.fromkeys(("Comparison", "Evaluation", "compare", "evaluate"), "api.evaluation"),
    **dict.fromkeys(("TrainedRun", "load"), "api.runs"),
    **dict.fromkeys(("configure", "train"), "api.training"),
    "RunConfig": "config.schema",
    "Callback": "logger.callbacks",
    **dict.fromkeys(("ConfigError", "Interrupted", "OffPolicyError"), "errors"),
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found  # the next access does not come here
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
