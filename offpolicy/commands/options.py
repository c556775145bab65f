"""Arguments that several commands have. Importing this needs no torch."""

from __future__ import annotations

import argparse
import math

from offpolicy.runs import LATEST, existing_run

TRUST = "--trust"
RUN_HELP = "a run: its directory, the beginning of its name, or latest (default)"


def positive(text: str) -> int:
    """Returns a whole number from 1 on."""
    return _whole_number(text, 1)


def not_negative(text: str) -> int:
    """Returns a whole number from 0 on."""
    return _whole_number(text, 0)


def _whole_number(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"got {text}, allowed a whole number in [{least}, inf)")
    return number


def finite(text: str) -> float:
    """Returns a number that is not infinite."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"got {text}, allowed a finite number")
    return number


def add_run(parser: argparse.ArgumentParser) -> None:
    """Adds one run of ours, by default the latest one."""
    parser.add_argument("run", nargs="?", default=LATEST, type=existing_run, help=RUN_HELP)


def add_policy_options(parser: argparse.ArgumentParser, *, has_device: bool = True) -> None:
    """Adds the options that say which policy of a run acts where: those of `PolicyChoice`."""
    parser.add_argument("--seed", type=not_negative, help="seed of the environments (default: that of the first run)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=not_negative, help="checkpoint to load, in env steps (default: the newest)")
    which.add_argument("--best", action="store_true", help="the policy of the run's best evaluation")
    parser.add_argument(TRUST, action="store_true", help="import code that lies in the run's or this directory")
    parser.add_argument(
        "--set", action="append", default=[], metavar="key=value", help="change the environment: --set env.kwargs.x=1"
    )
    if has_device:
        parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<index> (default: auto)")
