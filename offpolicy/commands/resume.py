"""`offpolicy resume RUN key=value ...`: a run continued from its newest checkpoint. The runners train."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

from offpolicy.commands.options import TRUST
from offpolicy.processes.signals import interrupts_exit
from offpolicy.runs import LATEST, existing_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the words, options and `--help` among them."""
    parser.add_argument("overrides", nargs="*", metavar="run key=value", help="a run, and keys to change")


def run(arguments: argparse.Namespace) -> int:
    """Continues the run, or prints the help that is asked for. Returns the exit code."""
    with contextlib.ExitStack() as opened:
        with interrupts_exit():
            from offpolicy.commands.runners import run_server, train_module
            from offpolicy.commands.trust import check_trust
            from offpolicy.config.help import is_asked, resume_help
            from offpolicy.config.overrides import load_values
            from offpolicy.config.parsing import flatten
            from offpolicy.config.run_files import read_config

            words = [word for word in arguments.overrides if word != TRUST]
            if is_asked(words):
                sys.stdout.write(resume_help(words, lambda word: read_config(existing_run(word))) + "\n")
                return 0
            named = [word for word in words if os.path.isdir(word) or ("=" not in word and not word.startswith("-"))]
            path = existing_run(named[0] if named else LATEST)
            overrides = load_values([word for word in words if word not in named[:1]])
            check_trust(path, is_trusted=TRUST in arguments.overrides, overridden=tuple(flatten(overrides)))
            server = opened.enter_context(run_server())
            module = train_module()
        return int(module.resume(path, overrides, server, ends_process=True))
