"""Arguments that several commands have. Importing this needs no torch."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from offpolicy.config.overrides import load_values
from offpolicy.runs import LATEST, existing_run

TRUST = "--trust"
RUN_HELP = "a run: its directory, the beginning of its name, or latest (default)"


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The policy of a run, and where it acts."""

    seed: int | None = None  # seed of the environments; None: that of the run
    step: int | None = None  # checkpoint in env steps; None: the newest
    device: str = "cpu"
    overrides: Mapping[str, Any] = field(default_factory=dict)  # of the environment, such as other physics
    is_best: bool = False  # the policy of the best evaluation, in place of a checkpoint's
    is_trusted: bool = False  # code that lies in the run's or this directory may be imported

    @classmethod
    def of(cls, given: argparse.Namespace) -> PolicyChoice:
        """Returns what the options say that `add_policy_options` adds. Raises `ConfigError`."""
        device = getattr(given, "device", "cpu")
        return cls(given.seed, given.step, device, load_values(given.set), given.best, given.trust)


def at_least(least: int) -> Callable[[str], int]:
    """Returns the reader of whole numbers from `least` on."""

    def read(text: str) -> int:
        with contextlib.suppress(ValueError):
            if int(text) >= least:
                return int(text)
        raise argparse.ArgumentTypeError(f"got {text}, allowed a whole number in [{least}, inf)")

    return read


def add_run(parser: argparse.ArgumentParser) -> None:
    """Adds one run of ours, by default the latest one."""
    parser.add_argument("run", nargs="?", default=LATEST, type=existing_run, help=RUN_HELP)


def add_policy_options(parser: argparse.ArgumentParser, *, has_device: bool = True) -> None:
    """Adds the options that say which policy of a run acts where: those of `PolicyChoice`, and `--trust`."""
    parser.add_argument("--seed", type=at_least(0), help="seed of the environments (default: that of the first run)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=at_least(0), help="checkpoint to load, in env steps (default: the newest)")
    which.add_argument("--best", action="store_true", help="the policy of the run's best evaluation")
    parser.add_argument(TRUST, action="store_true", help="import code that lies in the run's or this directory")
    changes = "change the environment: --set env.kwargs.x=1"
    parser.add_argument("--set", action="append", default=[], metavar="key=value", help=changes)
    if has_device:
        parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<index> (default: auto)")
