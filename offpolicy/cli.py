"""The command line: `offpolicy train|resume|eval`. It composes and checks, then hands over to the runners.

Nothing here imports torch, so a wrong option is refused within a second. Runners are found by name when they are
needed: the library does not depend on them.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import shutil
import sys
import textwrap
import typing
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from offpolicy import __version__
from offpolicy.config.parsing import allowed_text
from offpolicy.config.schema import RunConfig, owners
from offpolicy.errors import EXIT_INTERRUPTED, ConfigError, OffPolicyError

NO_PREFIX = "\0"  # argparse takes no word for an option: `--seed 3` must reach our own, more helpful refusal


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.command(arguments))
    except ConfigError as error:
        sys.stderr.write(_listed(error))
        return error.exit_code
    except OffPolicyError as error:
        sys.stderr.write(f"offpolicy: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("offpolicy: interrupted\n")
        return EXIT_INTERRUPTED


def config_help() -> str:
    """Every group with its options, and every key with its default, meaning and allowed values."""
    from offpolicy.config.overrides import group_options

    groups = [f"{name + '=...':<32} {', '.join(options)}" for name, options in group_options().items()]
    return "\n".join(["groups:", *map(_wrapped, groups), "", "keys:", *_key_lines(RunConfig, "")])


def _key_lines(cls: Any, prefix: str) -> list[str]:  # Any: one of our configuration dataclasses
    """One entry per field of `cls`: `key=default`, then its meaning and what is allowed."""
    hints = typing.get_type_hints(cls)
    lines: list[str] = []
    for spec in dataclasses.fields(cls):
        hint = hints[spec.name]
        if dataclasses.is_dataclass(hint):
            lines += _key_lines(hint, f"{prefix}{spec.name}.")
        else:
            default = _as_override(getattr(cls(), spec.name))
            entry = f"{prefix}{spec.name}={default}"
            names = ", ".join(owners(spec.metadata)).upper()
            meaning = f"{names}: {spec.metadata['doc']}" if names else spec.metadata["doc"]
            lines.append(_wrapped(f"{entry:<32} {meaning}; {allowed_text(hint, spec.metadata)}"))
    return lines


def _as_override(value: Any) -> str:
    """A default the way it is written on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return "[" + ",".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)


def _wrapped(entry: str) -> str:
    width = max(60, shutil.get_terminal_size((120, 24)).columns)
    wrapper = textwrap.TextWrapper(width, initial_indent="  ", subsequent_indent=" " * 35)
    wrapper.break_on_hyphens = wrapper.break_long_words = False
    return wrapper.fill(entry)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="offpolicy", description="Train policies with SAC, TD3, APPO or HORA and see where the wall time went."
    )
    parser.add_argument("--version", action="version", version=f"offpolicy {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")
    _add_train(commands)
    _add_resume(commands)
    _add_eval(commands)
    _add_play(commands)
    _add_record(commands)
    _add_explain(commands)
    _add_trace(commands)
    _add_compare(commands)
    return parser


def _add_train(commands: Any) -> None:  # Any: argparse keeps the type of a subparsers action private
    text = "train a policy: offpolicy train algo=td3 env=halfcheetah seed=3 (train --help lists every key)"
    parser = commands.add_parser("train", help=text, prefix_chars=NO_PREFIX, add_help=False)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="groups and keys, in Hydra's grammar")
    parser.set_defaults(command=_train, usage=parser.format_help)


def _add_resume(commands: Any) -> None:
    text = "continue a run from its newest checkpoint: offpolicy resume RUN_DIR total_timesteps=50000"
    parser = commands.add_parser("resume", help=text, prefix_chars=NO_PREFIX, add_help=False)
    parser.add_argument("run", type=Path, help="the run's directory")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="keys to change, in Hydra's grammar")
    parser.set_defaults(command=_resume, usage=parser.format_help)


def _add_eval(commands: Any) -> None:
    text = "evaluate policies on the same episodes: offpolicy eval RUN_DIR [LABEL=RUN_DIR ...] --episodes 20"
    parser = commands.add_parser("eval", help=text, description=text)
    parser.add_argument(
        "runs", nargs="+", metavar="[label=]run", help="a run's directory; all are held against the first"
    )
    parser.add_argument("--episodes", type=_positive, default=10, help="complete episodes of each (default: 10)")
    parser.add_argument("--random", action="store_true", help="random actions as one more policy")
    _add_policy_options(parser)
    parser.set_defaults(command=_evaluate)


def _add_play(commands: Any) -> None:
    text = "film a run's policy: offpolicy play RUN_DIR --video turning.gif"
    parser = commands.add_parser("play", help=text, description=text)
    parser.add_argument("run", type=Path, help="the run's directory")
    parser.add_argument("--video", type=Path, required=True, help="file to write: .gif, or .mp4 with offpolicy[video]")
    parser.add_argument("--episodes", type=_positive, default=1, help="complete episodes (default: 1)")
    _add_policy_options(parser)
    parser.set_defaults(command=_play)


def _add_record(commands: Any) -> None:
    text = "write episodes of a run's policy as demonstrations: offpolicy record RUN_DIR --out demos.npz"
    parser = commands.add_parser("record", help=text, description=text)
    parser.add_argument("run", type=Path, help="the run's directory")
    parser.add_argument("--out", type=Path, required=True, help="file to write: .npz, for replay.demos")
    parser.add_argument("--episodes", type=_positive, default=10, help="complete episodes (default: 10)")
    _add_policy_options(parser)
    parser.set_defaults(command=_record)


def _add_explain(commands: Any) -> None:
    text = "say where a run's time went and what a change would bring: offpolicy explain RUN_DIR"
    parser = commands.add_parser("explain", help=text, description=text)
    parser.add_argument("run", type=Path, help="the directory of a run that has ended")
    parser.add_argument("--before", type=Path, help="the run that one key was changed after: how right was it?")
    parser.set_defaults(command=_explain)


def _add_trace(commands: Any) -> None:
    text = "read the trace of a run made with timing.trace=true: offpolicy trace RUN_DIR"
    parser = commands.add_parser("trace", help=text, description=text)
    parser.add_argument("run", type=Path, help="the run's directory")
    parser.add_argument("--svg", type=Path, help="file for a picture of a few typical iterations")
    parser.add_argument("--iterations", type=_positive, default=3, help="how many in the picture (default: 3)")
    parser.add_argument("--start", type=_not_negative, help="of a resumed run: which start (default: the last)")
    parser.set_defaults(command=_trace)


def _add_compare(commands: Any) -> None:
    text = "hold runs against the first, time and learning: offpolicy compare RUN RUN, or a=RUN a=RUN b=RUN (seeds)"
    parser = commands.add_parser("compare", help=text, description=text)
    parser.add_argument(
        "runs", nargs="+", metavar="[label=]run", help="a run's directory, also one with TensorBoard files only"
    )
    parser.add_argument("--reference", type=float, help="score to reach (default: chosen from the curves)")
    parser.add_argument("--png", type=Path, help="write a picture; needs offpolicy[plot], as --html does")
    parser.add_argument("--markdown", type=Path, help="write the tables as Markdown")
    parser.add_argument("--html", type=Path, help="write one page with tables and picture")
    parser.set_defaults(command=_compare)


def _add_policy_options(parser: argparse.ArgumentParser) -> None:
    """Which policy acts where."""
    parser.add_argument("--seed", type=_not_negative, help="seed of the environments (default: that of the first run)")
    parser.add_argument("--step", type=_not_negative, help="checkpoint to load, in env steps (default: the newest)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<index> (default: auto)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="key=value", help="change the environment: --set env.kwargs.x=1"
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {number}, allowed a whole number in [1, inf)")
    return number


def _not_negative(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"got {number}, allowed a whole number in [0, inf)")
    return number


def _train(arguments: argparse.Namespace) -> int:
    if _asks_for_help(arguments.overrides):
        sys.stdout.write(f"{arguments.usage()}\n{config_help()}\n")
        return 0
    from offpolicy.config.overrides import load_config

    config = load_config(arguments.overrides)
    return int(_train_module().train(config))


def _resume(arguments: argparse.Namespace) -> int:
    if _asks_for_help([str(arguments.run), *arguments.overrides]):
        sys.stdout.write(f"{arguments.usage()}\n{config_help()}\n")
        return 0
    from offpolicy.config.overrides import load_values

    overrides = load_values(arguments.overrides)
    return int(_train_module().resume(_existing_run(arguments.run), overrides))


def _evaluate(arguments: argparse.Namespace) -> int:
    runs = _labelled_runs(arguments.runs)
    from offpolicy.commands import evaluate

    return evaluate.evaluate(evaluate.Request(runs, _choice(arguments), arguments.episodes, arguments.random))


def _play(arguments: argparse.Namespace) -> int:
    run = _existing_run(arguments.run)
    from offpolicy.commands import play

    return play.play(play.Request(run, _choice(arguments), arguments.video, arguments.episodes))


def _record(arguments: argparse.Namespace) -> int:
    run = _existing_run(arguments.run)
    from offpolicy.commands import record

    return record.record(record.Request(run, _choice(arguments), arguments.out, arguments.episodes))


def _explain(arguments: argparse.Namespace) -> int:
    run = _existing_run(arguments.run)
    before = None if arguments.before is None else _existing_run(arguments.before)
    from offpolicy.commands import explain

    return explain.explain(run, before)


def _trace(arguments: argparse.Namespace) -> int:
    run = _existing_run(arguments.run)
    from offpolicy.commands import trace

    return trace.trace(trace.Request(run, arguments.svg, arguments.iterations, arguments.start))


def _compare(arguments: argparse.Namespace) -> int:
    from offpolicy.commands import compare

    files = (arguments.png, arguments.markdown, arguments.html)
    return compare.compare(compare.Request(arguments.runs, arguments.reference, *files))


def _choice(arguments: argparse.Namespace) -> Any:  # Any: a class that is imported late
    """What `_add_policy_options` has asked for."""
    from offpolicy.commands.saved_run import PolicyChoice
    from offpolicy.config.overrides import load_values

    return PolicyChoice(arguments.seed, arguments.step, arguments.device, load_values(arguments.set))


def _labelled_runs(words: Sequence[str]) -> dict[str, Path]:
    """Directories by label: what stands before a `=`, else the directory's name."""
    runs: dict[str, Path] = {}
    for word in words:
        label, is_labelled, text = word.partition("=")
        if not is_labelled or (Path(word) / "config.yaml").is_file():  # a directory may have a = in its name
            label, text = Path(word).resolve().name, word
        path = _existing_run(Path(text))
        label = label or path.resolve().name
        if label in runs:
            raise ConfigError(f"run: the label {label!r} is given twice; write another one: other={text}")
        runs[label] = path
    return runs


def _asks_for_help(words: Sequence[str]) -> bool:
    return any(word in ("-h", "--help") for word in words)


def _existing_run(run: Path) -> Path:
    """`run` if it looks like a run's directory. Raises `ConfigError` before torch is imported if not."""
    if not (run / "config.yaml").is_file():
        raise ConfigError(f"run: got {str(run)!r}, allowed the directory of a run (it has no config.yaml)")
    return run


def _train_module() -> ModuleType:
    """`offpolicy.runners.train`, as the wheel installs it, or `runners.train` beside the package in a checkout."""
    package = "offpolicy.runners" if importlib.util.find_spec("offpolicy.runners") else "runners"
    return importlib.import_module(f"{package}.train")


def _listed(error: ConfigError) -> str:
    count = len(error.problems)
    header = f"offpolicy: {count} configuration problem{'s' if count > 1 else ''}"
    return "\n".join([header, *(f"  {problem}" for problem in error.problems)]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
