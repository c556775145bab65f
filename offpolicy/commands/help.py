"""`offpolicy help [WORD]`: the keys of a run, or those with a word in name or meaning; as `offpolicy train --help`."""

from __future__ import annotations

import argparse
import sys

from offpolicy.config.help import train_help


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the words."""
    parser.add_argument("words", nargs="*", metavar="word", help="all, a word such as lr, or groups such as algo=td3")


def run(arguments: argparse.Namespace) -> int:
    """Prints the help."""
    sys.stdout.write(train_help(["--help", *arguments.words]) + "\n")
    return 0
