"""The command line: `offpolicy train|resume|list|eval|play|...`; `offpolicy --help` lists all commands.

Each command is imported when it is chosen, so that help and refusals need no torch and come within a second. The
runners are found by name: the library does not depend on them.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offpolicy import __version__
from offpolicy.commands.runners import run_server, train_module
from offpolicy.errors import EXIT_OK, EXIT_PIPE_CLOSED, ConfigError, OffPolicyError, SaveError
from offpolicy.files import too_long
from offpolicy.number_text import counted
from offpolicy.run_names import LATEST, ROOT, find_run
from offpolicy.start import drop_refused, interrupted_code, interrupts_exit, open_streams, stop_refused

if TYPE_CHECKING:
    from offpolicy.config.schema import RunConfig

RUN_HELP = "a run: its directory, the beginning of its name, or latest (default)"
TRUST = "--trust"
NO_PREFIX = "\0"  # keeps argparse from taking `--seed 3` for an option: our own refusal says what to write


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    A reader who leaves early ends it as the signal SIGPIPE would; a stdout that takes nothing else fails it.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    with interrupts_exit():
        open_streams()
        drop_refused("stderr")  # the last line, on a full disk: the exit code says it too
        why_refused = stop_refused("stdout")
    code = EXIT_OK
    try:
        code = _run(words)
        sys.stdout.flush()
    except SystemExit as leaving:  # of argparse, which drops what it cannot print
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        if (refused := why_refused()) is None:
            raise
        code = leaving.code if isinstance(leaving.code, int) else EXIT_OK
    except OSError as error:
        if error is not why_refused():
            raise
        refused = error
    else:
        return code
    return code or _told(refused)


def _told(refused: OSError) -> int:
    """Says why stdout took nothing, unless its reader has left, and returns the exit code."""
    if isinstance(refused, BrokenPipeError):
        return EXIT_PIPE_CLOSED
    sys.stderr.write(f"offpolicy: stdout: {refused.strerror}\n")
    return SaveError.exit_code


def _run(words: Sequence[str]) -> int:
    try:
        with interrupts_exit():
            arguments = _parse(words or ["--help"])
        return int(arguments.command(arguments))
    except ConfigError as error:
        header = f"offpolicy: {counted(len(error.problems), 'configuration problem')}"
        sys.stderr.write("\n".join([header, *(f"  {problem}" for problem in error.problems)]) + "\n")
        return error.exit_code
    except OffPolicyError as error:
        sys.stderr.write(f"offpolicy: {error}\n")
        return error.exit_code
    except KeyboardInterrupt as error:
        sys.stderr.write("offpolicy: interrupted\n")
        return interrupted_code(error)


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """Parses a command line. `key=value` may stand on both sides of an option: argparse takes one group of them."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(words)
    if any(word.startswith("-") for word in rest) or (rest and not hasattr(arguments, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    _check_paths(arguments, words)
    return arguments


def _check_paths(arguments: argparse.Namespace, words: Sequence[str]) -> None:
    """Refuses files and directories with names that no filesystem takes. Raises `ConfigError`."""
    options = {word.partition("=")[0] for word in words}
    found = {name: value for name, value in vars(arguments).items() if isinstance(value, Path)}
    problems = [
        problem
        for name, path in found.items()
        for problem in too_long(f"--{name}" if f"--{name}" in options else name, path)
    ]
    if problems:
        raise ConfigError(problems)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="offpolicy",
        description="Train policies with SAC, TD3, FlashSAC, APPO or HORA, and see where the wall time went.",
        epilog="RUN is a run's directory, `latest`, or the beginning of its name. Begin with: offpolicy train algo=sac",
    )
    parser.add_argument("--version", action="version", version=f"offpolicy {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")
    explaining = (_add_explain, _add_trace, _add_compare, _add_tensorboard)
    using = (_add_list, _add_eval, _add_play, _add_record, _add_export, _add_prune)
    for add in (_add_train, _add_help, _add_resume, *using, *explaining, _add_sweep, _add_reproduce, _add_doctor):
        add(commands)
    return parser


def _add_train(commands: Any) -> None:  # Any: argparse keeps the type of a subparsers action private
    text = "train a policy: offpolicy train algo=td3 env=halfcheetah seed=3 (train --help shows the keys)"
    parser = commands.add_parser("train", help=text, prefix_chars=NO_PREFIX, add_help=False)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="groups and keys, in Hydra's grammar")
    parser.set_defaults(command=_train)


def _train(arguments: argparse.Namespace) -> int:
    with contextlib.ExitStack() as opened:
        with interrupts_exit():
            words = [word for word in arguments.overrides if word != TRUST]
            from offpolicy.config.help import is_asked, train_help
            from offpolicy.config.overrides import load_config

            if is_asked(words):
                sys.stdout.write(train_help(words) + "\n")
                return 0

            config = load_config(words)
            _check_source(words, is_trusted=TRUST in arguments.overrides)
            server = opened.enter_context(run_server())  # it imports torch while this process imports the rest
            module = train_module()
        return int(module.train(config, server, ends_process=True))


def _add_help(commands: Any) -> None:
    text = "say what a key means: offpolicy help algo.tau (all: every key)"
    parser = commands.add_parser("help", help=text, description=text)
    parser.add_argument("words", nargs="*", metavar="word key=value", help="a word of keys, and choices")
    parser.set_defaults(command=_help)


def _help(arguments: argparse.Namespace) -> int:
    from offpolicy.config.help import train_help

    sys.stdout.write(train_help(["--help", *arguments.words]) + "\n")
    return 0


def _add_resume(commands: Any) -> None:
    text = "continue a run from its newest checkpoint: offpolicy resume RUN total_timesteps=50000"
    parser = commands.add_parser("resume", help=text, prefix_chars=NO_PREFIX, add_help=False)
    parser.add_argument("words", nargs="*", metavar="run key=value", help="a run, and keys to change")
    parser.set_defaults(command=_resume)


def _resume(arguments: argparse.Namespace) -> int:
    with contextlib.ExitStack() as opened:
        with interrupts_exit():
            from offpolicy.config.help import is_asked, resume_help
            from offpolicy.config.overrides import load_values

            words = [word for word in arguments.words if word != TRUST]
            if is_asked(words):
                sys.stdout.write(resume_help(words, _config_of) + "\n")
                return 0
            named = [word for word in words if os.path.isdir(word) or ("=" not in word and not word.startswith("-"))]
            run = _existing_run(named[0] if named else LATEST)
            overrides = load_values([word for word in words if word not in named[:1]])
            from offpolicy.commands.trust import check_trust
            from offpolicy.config.parsing import flatten

            check_trust(run, is_trusted=TRUST in arguments.words, overridden=tuple(flatten(overrides)))
            server = opened.enter_context(run_server())
            module = train_module()
        return int(module.resume(run, overrides, server, ends_process=True))


def _config_of(word: str) -> RunConfig:
    from offpolicy.config.run_files import read_config

    return read_config(_existing_run(word))


def _add_list(commands: Any) -> None:
    text = "list the runs, the newest first: offpolicy list"
    parser = commands.add_parser("list", help=text, description=text)
    parser.add_argument("directory", type=Path, nargs="?", default=ROOT, help=f"where to look (default: {ROOT})")
    parser.add_argument("--most", type=_positive, default=15, help="runs to show (default: 15)")
    parser.set_defaults(command=_list)


def _list(arguments: argparse.Namespace) -> int:
    from offpolicy.commands.list_runs import list_runs

    return list_runs(arguments.directory, arguments.most)


def _add_eval(commands: Any) -> None:
    text = "evaluate policies on the same episodes: offpolicy eval RUN [LABEL=RUN ...] --episodes 20"
    parser = commands.add_parser("eval", help=text, description=text)
    parser.add_argument(
        "runs", nargs="*", metavar="[label=]run", help="runs; all are held against the first (default: latest)"
    )
    parser.add_argument("--episodes", type=_positive, default=10, help="complete episodes of each (default: 10)")
    parser.add_argument("--random", action="store_true", help="random actions as one more policy")
    _add_policy_options(parser)
    _add_device(parser)
    parser.set_defaults(command=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> int:
    from offpolicy.analysis.runs import path_by_label

    paths = {label: _existing_run(path) for label, path in path_by_label(arguments.runs or [LATEST]).items()}
    for run in paths.values():
        _check_trust(run, arguments)
    from offpolicy.commands.evaluate import evaluate

    return evaluate(paths, _choice(arguments), episodes=arguments.episodes, with_random=arguments.random)


def _add_play(commands: Any) -> None:
    text = "show a run's policy in a window, or film it: offpolicy play RUN --video turning.gif"
    parser = commands.add_parser("play", help=text, description=text)
    parser.add_argument("run", nargs="?", default=LATEST, type=_existing_run, help=RUN_HELP)
    parser.add_argument(
        "--video", type=Path, help="file to write: .gif, or .mp4; without it, a window where there is a display"
    )
    parser.add_argument("--episodes", type=_positive, default=1, help="complete episodes (default: 1)")
    _add_policy_options(parser)
    _add_device(parser)
    parser.set_defaults(command=_play)


def _play(arguments: argparse.Namespace) -> int:
    _check_trust(arguments.run, arguments)
    from offpolicy.commands.play import play

    return play(arguments.run, _choice(arguments), video=arguments.video, episodes=arguments.episodes)


def _add_record(commands: Any) -> None:
    text = "write episodes of a run's policy as demonstrations: offpolicy record RUN --out demos.npz"
    parser = commands.add_parser("record", help=text, description=text)
    parser.add_argument("run", nargs="?", default=LATEST, type=_existing_run, help=RUN_HELP)
    parser.add_argument("--out", type=Path, required=True, help="file to write: .npz, for replay.demos")
    parser.add_argument("--episodes", type=_positive, default=10, help="complete episodes (default: 10)")
    _add_policy_options(parser)
    _add_device(parser)
    parser.set_defaults(command=_record)


def _record(arguments: argparse.Namespace) -> int:
    _check_trust(arguments.run, arguments)
    from offpolicy.commands.record import record

    return record(arguments.run, _choice(arguments), out=arguments.out, episodes=arguments.episodes)


def _add_export(commands: Any) -> None:
    text = "write a run's policy as a file that needs no offpolicy: offpolicy export RUN --onnx policy.onnx"
    parser = commands.add_parser("export", help=text, description=text)
    parser.add_argument("run", nargs="?", default=LATEST, type=_existing_run, help=RUN_HELP)
    parser.add_argument("--onnx", type=Path, help="file to write, .onnx; needs offpolicy[export]")
    parser.add_argument("--torch", type=Path, help="file to write, .pt2, a program of torch.export")
    _add_policy_options(parser)
    parser.set_defaults(command=_export, device="cpu")  # what is written depends on no device


def _export(arguments: argparse.Namespace) -> int:
    _check_trust(arguments.run, arguments)
    from offpolicy.commands.export import export

    files = {"--onnx": arguments.onnx, "--torch": arguments.torch}
    return export(arguments.run, _choice(arguments), {option: file for option, file in files.items() if file})


def _add_prune(commands: Any) -> None:
    text = "remove old checkpoints of runs, never the newest good one nor the best: offpolicy prune RUN --dry-run"
    parser = commands.add_parser("prune", help=text, description=text)
    parser.add_argument("runs", nargs="+", type=_existing_run, metavar="run", help="runs to prune")
    parser.add_argument("--keep", type=_positive, default=1, help="good checkpoints that stay (default: 1)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")
    parser.set_defaults(command=_prune)


def _prune(arguments: argparse.Namespace) -> int:
    from offpolicy.commands.prune import prune

    return prune(arguments.runs, keep=arguments.keep, is_dry=arguments.dry_run)


def _add_policy_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which policy acts where."""
    parser.add_argument("--seed", type=_not_negative, help="seed of the environments (default: that of the first run)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=_not_negative, help="checkpoint to load, in env steps (default: the newest)")
    which.add_argument("--best", action="store_true", help="the policy of the run's best evaluation")
    parser.add_argument(TRUST, action="store_true", help="import code that lies in the run's or this directory")
    parser.add_argument(
        "--set", action="append", default=[], metavar="key=value", help="change the environment: --set env.kwargs.x=1"
    )


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<index> (default: auto)")


def _check_trust(run: Path, arguments: argparse.Namespace) -> None:
    """Prints which code a run's directory names; refuses some of it without `--trust`."""
    from offpolicy.commands.trust import check_trust

    check_trust(run, is_trusted=arguments.trust)


def _check_source(words: Sequence[str], *, is_trusted: bool) -> None:
    """Does the same for the run of `config=RUN`, whose modules a new run would import."""
    from offpolicy.commands.trust import check_source

    check_source(words, is_trusted=is_trusted)


def _choice(arguments: argparse.Namespace) -> Any:  # Any: a class that is imported late
    """Returns the `PolicyChoice` of the options that `_add_policy_options` and `_add_device` add."""
    from offpolicy.commands.saved_run import PolicyChoice
    from offpolicy.config.overrides import load_values

    return PolicyChoice(arguments.seed, arguments.step, arguments.device, load_values(arguments.set), arguments.best)


def _add_explain(commands: Any) -> None:
    text = "say where a run's time went and what a change would bring: offpolicy explain RUN"
    parser = commands.add_parser("explain", help=text, description=text)
    parser.add_argument("run", nargs="?", default=LATEST, type=_existing_run, help=RUN_HELP)
    parser.add_argument(
        "--before", type=_existing_run, help="the run that one key was changed after: how right was it?"
    )
    parser.set_defaults(command=_explain)


def _explain(arguments: argparse.Namespace) -> int:
    from offpolicy.commands.explain import explain

    return explain(arguments.run, arguments.before)


def _add_trace(commands: Any) -> None:
    text = "read the trace of a run made with timing.trace=true: offpolicy trace RUN"
    parser = commands.add_parser("trace", help=text, description=text)
    parser.add_argument("run", nargs="?", default=LATEST, type=_existing_run, help=RUN_HELP)
    parser.add_argument("--svg", type=Path, help="file for a picture of a few typical iterations")
    parser.add_argument("--iterations", type=_positive, default=3, help="how many in the picture (default: 3)")
    parser.add_argument("--start", type=_not_negative, help="of a resumed run: which start (default: the last)")
    parser.set_defaults(command=_trace)


def _trace(arguments: argparse.Namespace) -> int:
    from offpolicy.commands.trace import trace

    return trace(arguments.run, svg=arguments.svg, iterations=arguments.iterations, start=arguments.start)


def _add_compare(commands: Any) -> None:
    text = "hold runs against the first, time and learning: offpolicy compare RUN RUN, or a=RUN a=RUN b=RUN (seeds)"
    parser = commands.add_parser("compare", help=text, description=text)
    parser.add_argument(
        "runs", nargs="+", metavar="[label=]run", help="a run's directory, also one with TensorBoard files only"
    )
    parser.add_argument("--reference", type=_finite, help="score to reach (default: chosen from the curves)")
    parser.add_argument("--png", type=Path, help="write a picture; needs offpolicy[plot], as --html does")
    parser.add_argument("--markdown", type=Path, help="write the tables as Markdown")
    parser.add_argument("--html", type=Path, help="write one page with tables and picture")
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="CONDITION",
        help="for CI, repeatable: exit 1 if a change is surely beyond it, 75 if that cannot be judged:"
        " 'perf/steps_per_sec<-5%%', 'timing/learner_train_ms>+3%%', 'eval/mean_reward<-10'",
    )
    parser.set_defaults(command=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    from offpolicy.commands.compare import compare

    files = {"png": arguments.png, "markdown": arguments.markdown, "html": arguments.html}
    return compare(arguments.runs, arguments.reference, fail_on=arguments.fail_on, **files)


def _add_tensorboard(commands: Any) -> None:
    text = "show the curves of all runs, or of some, in a browser: offpolicy tensorboard [RUN ...]"
    parser = commands.add_parser("tensorboard", help=text, description=text)
    parser.add_argument("runs", nargs="*", metavar="[label=]run", help="runs to show (default: all)")
    parser.add_argument("--logdir", type=Path, default=ROOT, help=f"where all runs are (default: {ROOT})")
    parser.add_argument("--port", type=int, help="port to serve at (default: 6006, or the next free one)")
    parser.add_argument("--host", help="address to serve at, such as 0.0.0.0 for other machines")
    parser.add_argument("--reload_interval", type=_positive, help="seconds between two looks for new records")
    parser.add_argument("--samples_per_plugin", help="points kept per chart, such as scalars=5000")
    parser.set_defaults(command=_tensorboard)


def _tensorboard(arguments: argparse.Namespace) -> int:
    from offpolicy.commands.tensorboard import tensorboard

    options = {name: getattr(arguments, name) for name in ("port", "host", "reload_interval", "samples_per_plugin")}
    return tensorboard(arguments.runs, arguments.logdir, options)


def _add_reproduce(commands: Any) -> None:
    text = "run a finished run again and compare the results: offpolicy reproduce RUN [key=value ...]"
    parser = commands.add_parser("reproduce", help=text, description=text)
    parser.add_argument("run", type=_existing_run, help="a run: its directory, the beginning of its name, or latest")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="keys to change, such as run_dir=runs/again"
    )
    parser.add_argument(TRUST, action="store_true", help="import code that lies in the run's directory")
    parser.set_defaults(command=_reproduce)


def _reproduce(arguments: argparse.Namespace) -> int:
    from offpolicy.commands.reproduce import reproduce
    from offpolicy.config.overrides import as_override

    words = [f"config={as_override(str(arguments.run))}", *arguments.overrides]
    _check_source(words, is_trusted=arguments.trust)
    return reproduce(arguments.run, arguments.overrides, lambda cfg: int(train_module().train(cfg)))


def _add_sweep(commands: Any) -> None:
    text = "search for the settings that learn best, in parallel: offpolicy sweep space.yaml algo=sac --trials 20"
    parser = commands.add_parser("sweep", help=text, description=text)
    parser.add_argument("space", type=Path, help="a YAML file of keys, each with what it may be (docs/sweeps.md)")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="what all trials have in common")
    parser.add_argument("--trials", type=_positive, default=20, help="settings to try (default: 20)")
    parser.add_argument(
        "--seeds",
        type=_positive,
        default=1,
        help="runs of each, with seeds 1, 2, ..., or from that of config=RUN on (default: 1)",
    )
    parser.add_argument("--jobs", type=_positive, help="runs at once, which divide the cores (default: one per core)")
    parser.add_argument("--out", type=Path, help="directory of the sweep, to go on with too (default: sweeps/<space>)")
    parser.add_argument("--launcher", choices=("local", "slurm"), default="local", help="where runs are started")
    parser.add_argument("--sbatch", default="", help="options of sbatch: '--partition=gpu --time=4:00:00'")
    parser.add_argument("--no-prune", action="store_true", help="train every trial to its end")
    parser.add_argument(TRUST, action="store_true", help="import code that lies in the directory of config=RUN")
    parser.set_defaults(command=_sweep)


def _sweep(arguments: argparse.Namespace) -> int:
    from offpolicy.commands.sweep import SweepOptions, sweep

    _check_source(arguments.overrides, is_trusted=arguments.trust)
    names = ("trials", "seeds", "jobs", "out", "launcher", "sbatch")
    options = {name: getattr(arguments, name) for name in names}
    return sweep(arguments.space, arguments.overrides, SweepOptions(**options, prunes=not arguments.no_prune))


def _add_doctor(commands: Any) -> None:
    text = "check the installation and this machine, and say what will be slow: offpolicy doctor"
    parser = commands.add_parser("doctor", help=text, description=text)
    parser.add_argument("--json", action="store_true", help="write the findings as JSON")
    parser.set_defaults(command=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from offpolicy.commands.doctor import doctor

    return doctor(as_json=arguments.json)


def _finite(text: str) -> float:
    number = _number(text)
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"got {text}, allowed a finite number")
    return number


def _number(text: str) -> float:
    """Returns a number; NaN for what is none, which no option allows."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _positive(text: str) -> int:
    return _whole_number(text, 1)


def _not_negative(text: str) -> int:
    return _whole_number(text, 0)


def _whole_number(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"got {text}, allowed a whole number in [{least}, inf)")
    return number


def _existing_run(path: Path | str) -> Path:
    """Returns the directory of the run that `path` names. Raises `ConfigError`, before torch is imported, for none."""
    run = find_run(path)
    if not (run / "config.yaml").is_file():
        raise ConfigError(f"run: got {str(run)!r}, allowed the directory of a run (it has no config.yaml)")
    return run


if __name__ == "__main__":
    sys.exit(main())
