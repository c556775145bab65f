"""The command line: a table of commands, and the exit codes of their errors.

A command's module is imported when the command is chosen, so that help and refusals need no torch.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import sys
from collections.abc import Sequence
from importlib import metadata

from offpolicy.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_PIPE_CLOSED, ConfigError, OffPolicyError, SaveError
from offpolicy.output import counted, drop_refused, open_streams, silence
from offpolicy.processes.signals import interrupts_exit

# Name of a command: its module in offpolicy.commands, with add_arguments(parser) and run(arguments), or module:function
# in place of add_arguments, which then says what runs; a line of help.
COMMANDS = {
    "train": ("train", "train a policy: offpolicy train algo=td3 env=halfcheetah seed=3 (train --help: the keys)"),
    "resume": ("train:add_resume", "continue a run from its newest checkpoint: offpolicy resume RUN key=value"),
    "list": ("list_runs", "list the runs, the newest first: offpolicy list"),
    "eval": ("evaluate", "evaluate policies on the same episodes: offpolicy eval RUN [LABEL=RUN ...] --episodes 20"),
    "play": ("play", "show a run's policy in a window, or film it: offpolicy play RUN --video turning.gif"),
    "record": ("play:add_record", "write a policy's episodes as demonstrations: offpolicy record RUN --out demos.npz"),
    "export": ("export", "write a policy as a file without offpolicy: offpolicy export RUN --onnx policy.onnx"),
    "prune": ("prune", "remove old checkpoints, never the newest good one nor the best: offpolicy prune RUN --dry-run"),
    "explain": ("explain", "say where a run's time went and what a change would bring: offpolicy explain RUN"),
    "trace": ("trace", "read the trace of a run made with timing.trace=true: offpolicy trace RUN"),
    "compare": ("compare", "compare runs with the first: offpolicy compare RUN RUN, or a=RUN a=RUN b=RUN (seeds)"),
    "tensorboard": ("tensorboard", "show the curves of all or some runs in a browser: offpolicy tensorboard [RUN ...]"),
    "sweep": ("sweep", "search for the settings that learn best: offpolicy sweep space.yaml algo=sac --trials 20"),
    "reproduce": ("reproduce", "run a finished run again and compare the results: offpolicy reproduce RUN"),
    "doctor": ("doctor", "check the installation and this machine, and say what will be slow: offpolicy doctor"),
    "help": ("train:add_help", "say what the keys of a run mean: offpolicy help algo.lr"),
}
OF_WORDS = ("train", "resume")  # commands that read their options as words: `--seed 3` gets its own answer
NO_PREFIX = "\0"
REFUSALS = {  # what an operating system says to a command, mostly to its stdout
    errno.EPIPE: EXIT_PIPE_CLOSED,
    errno.ENOSPC: SaveError.exit_code,
    errno.ENAMETOOLONG: ConfigError.exit_code,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; without a reader that of SIGPIPE, on a full disk 74."""
    words = sys.argv[1:] if argv is None else list(argv)
    with interrupts_exit():
        open_streams()
        drop_refused("stderr")  # the last line, on a full disk: the exit code says it too
    code = EXIT_OK
    try:
        code = _run(words)
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        silence(sys.stdout)
        if not code and error.errno != errno.EPIPE:
            sys.stderr.write(f"offpolicy: {error.strerror}\n")
        return code or REFUSALS[error.errno]
    return code


def _run(words: Sequence[str]) -> int:
    try:
        with interrupts_exit():
            arguments = parser_of(words).parse_intermixed_args(words[1:])
        return int(arguments.run_command(arguments))
    except SystemExit as leaving:  # of argparse, after the help or what is wrong
        return int(leaving.code or EXIT_OK)
    except OffPolicyError as error:
        problems = error.problems if isinstance(error, ConfigError) else ()
        header = counted(len(problems), "configuration problem") if problems else str(error)
        sys.stderr.write("".join(f"{line}\n" for line in (f"offpolicy: {header}", *(f"  {each}" for each in problems))))
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("offpolicy: interrupted\n")
        return EXIT_INTERRUPTED


def parser_of(words: Sequence[str]) -> argparse.ArgumentParser:
    """Returns the parser of the command that a command line begins with. Exits where it names none."""
    if not words or words[0] not in COMMANDS:
        whole_parser().parse_args(words or ["--help"])  # prints the help or the version, or what is wrong
    name = words[0]
    target, text = COMMANDS[name]
    is_of_words = name in OF_WORDS
    parser = argparse.ArgumentParser(
        f"offpolicy {name}", description=text, add_help=not is_of_words, prefix_chars=NO_PREFIX if is_of_words else "-"
    )
    module, _, function = target.partition(":")
    command = importlib.import_module(f"offpolicy.commands.{module}")
    parser.set_defaults(run_command=command.run)
    getattr(command, function or "add_arguments")(parser)
    return parser


def whole_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line, which knows the names of the commands alone."""
    parser = argparse.ArgumentParser(
        prog="offpolicy",
        description="Train policies with SAC, TD3, FlashSAC, APPO or HORA, and see where the wall time went.",
        epilog="RUN is a run's directory, `latest`, or the beginning of its name. Begin with: offpolicy train algo=sac",
    )
    parser.add_argument("--version", action="version", version=f"offpolicy {metadata.version('offpolicy')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")
    for name, (_, text) in COMMANDS.items():
        commands.add_parser(name, help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
