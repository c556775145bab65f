"""`offpolicy train key=value ...`: a new run, or the run of `run_dir` continued. The runners train."""

from __future__ import annotations

import argparse
import contextlib
import sys

from offpolicy.commands.options import TRUST
from offpolicy.processes.signals import interrupts_exit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the words, options and `--help` among them."""
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="groups and keys, in Hydra's grammar")


def run(arguments: argparse.Namespace) -> int:
    """Trains, or prints the help that is asked for. Returns the exit code."""
    with contextlib.ExitStack() as opened:
        with interrupts_exit():
            from offpolicy.commands.runners import run_server, train_module
            from offpolicy.commands.trust import check_source
            from offpolicy.config.help import is_asked, train_help
            from offpolicy.config.overrides import load_config

            words = [word for word in arguments.overrides if word != TRUST]
            if is_asked(words):
                sys.stdout.write(train_help(words) + "\n")
                return 0
            config = load_config(words)
            check_source(words, is_trusted=TRUST in arguments.overrides)
            server = opened.enter_context(run_server())  # it imports torch while this process imports the rest
            module = train_module()
        return int(module.train(config, server, ends_process=True))
