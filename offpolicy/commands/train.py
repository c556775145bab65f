"""`offpolicy train key=value ...`, `resume RUN key=value ...`, `help [WORD]`. The runners, found by name, train."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import sys
import uuid
from types import ModuleType

from offpolicy.commands.options import TRUST
from offpolicy.commands.trust import check_source, check_trust
from offpolicy.config.help import is_asked, resume_help, train_help
from offpolicy.config.overrides import load_config, load_values
from offpolicy.config.parsing import flatten
from offpolicy.config.run_files import read_config
from offpolicy.errors import EXIT_OK
from offpolicy.machine import has_gpu
from offpolicy.processes.fork_server import LONG_SPIN_ROUNDS, SPIN_ROUNDS, ForkServer
from offpolicy.processes.signals import interrupts_exit
from offpolicy.runs import LATEST, existing_run

# What the processes of a run need, whatever its configuration; a probe needs the first only.
LIBRARY = ("offpolicy.envs.probe", "torch")
RUNNERS = ("single_gpu", "double_buffer", "multi_gpu", "appo", "collector", "link", "evaluator")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the words, options and `--help` among them."""
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="groups and keys, in Hydra's grammar")


def run(arguments: argparse.Namespace) -> int:
    """Trains, or prints the help that is asked for. Returns the exit code."""
    words = [word for word in arguments.overrides if word != TRUST]
    if is_asked(words):
        return _print(train_help(words))
    with interrupts_exit():
        config = load_config(words)
        check_source(words, is_trusted=TRUST in arguments.overrides)
    return _run("train", config)


def add_resume(parser: argparse.ArgumentParser) -> None:
    """Adds the words of `resume`, options and `--help` among them."""
    parser.add_argument("overrides", nargs="*", metavar="run key=value", help="a run, and keys to change")
    parser.set_defaults(run_command=run_resume)


def run_resume(arguments: argparse.Namespace) -> int:
    """Continues a run from its newest checkpoint, or prints the help that is asked for. Returns the exit code."""
    words = [word for word in arguments.overrides if word != TRUST]
    if is_asked(words):
        return _print(resume_help(words, lambda word: read_config(existing_run(word))))
    with interrupts_exit():
        named = [word for word in words if os.path.isdir(word) or ("=" not in word and not word.startswith("-"))]
        path = existing_run(named[0] if named else LATEST)
        overrides = load_values([word for word in words if word not in named[:1]])
        check_trust(path, is_trusted=TRUST in arguments.overrides, overridden=tuple(flatten(overrides)))
    return _run("resume", path, overrides)


def add_help(parser: argparse.ArgumentParser) -> None:
    """Adds the words of `help`: the keys of a run, or those with a word in name or meaning."""
    parser.add_argument("words", nargs="*", metavar="word", help="all, a word such as lr, or groups such as algo=td3")
    parser.set_defaults(run_command=lambda arguments: _print(train_help(["--help", *arguments.words])))


def run_server(spin_rounds: int | None = None) -> ForkServer:
    """Returns the fork server of a run; without `spin_rounds` it has those that most runs on this machine need."""
    if spin_rounds is None:
        spin_rounds = SPIN_ROUNDS if has_gpu() else LONG_SPIN_ROUNDS
    # The run's id marks every process of it, and what they start; a caller may have chosen it.
    environment = {**os.environ, "OFFPOLICY_RUN_ID": os.environ.get("OFFPOLICY_RUN_ID") or uuid.uuid4().hex}
    modules = (*LIBRARY, *(f"{_package()}.{name}" for name in RUNNERS))
    return ForkServer(modules, environment, spin_rounds)


def train_module() -> ModuleType:
    """Imports `offpolicy.runners.train`, as the wheel installs it, or the checkout's `runners.train`."""
    return importlib.import_module(f"{_package()}.train")


def _package() -> str:
    return "offpolicy.runners" if importlib.util.find_spec("offpolicy.runners") else "runners"


def _run(function: str, *given: object) -> int:
    """Calls a function of the runners with what is given, and the fork server. Returns the exit code."""
    with contextlib.ExitStack() as opened:
        with interrupts_exit():
            server = opened.enter_context(run_server())  # it imports torch while this process imports the rest
            runners = train_module()
        return int(getattr(runners, function)(*given, server, ends_process=True))


def _print(text: str) -> int:
    sys.stdout.write(f"{text}\n")
    return EXIT_OK
