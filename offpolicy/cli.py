"""The command line: `offpolicy train|resume|eval|play|record|explain|trace|compare|report|tune`.

Each command is imported when it is chosen, so that help and refusals need no torch and come within a second. The
runners are found by name: the library does not depend on them.
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
from offpolicy.config.rules import owners
from offpolicy.config.schema import RunConfig
from offpolicy.errors import EXIT_INTERRUPTED, ConfigError, OffPolicyError

NO_PREFIX = "\0"  # keeps argparse from taking `--seed 3` for an option: our own refusal says what to write


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    try:
        arguments = _parser().parse_args(argv)
        return int(arguments.command(arguments))
    except ConfigError as error:
        count = len(error.problems)
        header = f"offpolicy: {count} configuration problem{'s' if count > 1 else ''}"
        sys.stderr.write("\n".join([header, *(f"  {problem}" for problem in error.problems)]) + "\n")
        return error.exit_code
    except OffPolicyError as error:
        sys.stderr.write(f"offpolicy: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("offpolicy: interrupted\n")
        return EXIT_INTERRUPTED


def config_help() -> str:
    """Returns every group with its options, and every key with its default, meaning and allowed values."""
    from offpolicy.config.overrides import group_options

    groups = [f"{name + '=...':<32} {', '.join(options)}" for name, options in group_options().items()]
    return "\n".join(["groups:", *map(_wrapped, groups), "", "keys:", *_key_lines(RunConfig, "")])


def _key_lines(cls: Any, prefix: str) -> list[str]:  # Any: one of our configuration dataclasses
    """Returns one entry per field of `cls`: `key=default`, then its meaning and allowed values."""
    hints = typing.get_type_hints(cls)
    lines: list[str] = []
    for spec in dataclasses.fields(cls):
        hint = hints[spec.name]
        if dataclasses.is_dataclass(hint):
            lines += _key_lines(hint, f"{prefix}{spec.name}.")
        else:
            default = _as_override(getattr(cls(), spec.name))
            entry = f"{prefix}{spec.name}={default}"
            names = ", ".join(owners(spec.metadata.get("only", ()))).upper()
            meaning = f"{names}: {spec.metadata['doc']}" if names else spec.metadata["doc"]
            lines.append(_wrapped(f"{entry:<32} {meaning}; {allowed_text(hint, spec.metadata)}"))
    return lines


def _as_override(value: Any) -> str:
    """Returns a default as it is written on the command line."""
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
    others = (_add_eval, _add_play, _add_record, _add_explain, _add_trace, _add_compare, _add_report, _add_tune)
    for add in (_add_train, _add_resume, *others):
        add(commands)
    return parser


def _add_train(commands: Any) -> None:  # Any: argparse keeps the type of a subparsers action private
    text = "train a policy: offpolicy train algo=td3 env=halfcheetah seed=3 (train --help lists every key)"
    parser = commands.add_parser("train", help=text, prefix_chars=NO_PREFIX, add_help=False)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="groups and keys, in Hydra's grammar")
    parser.set_defaults(command=_train, usage=parser.format_help)


def _train(arguments: argparse.Namespace) -> int:
    if _wrote_help(arguments, arguments.overrides):
        return 0
    from offpolicy.config.overrides import load_config

    config = load_config(arguments.overrides)
    return int(_train_module().train(config))


def _add_resume(commands: Any) -> None:
    text = "continue a run from its newest checkpoint: offpolicy resume RUN_DIR total_timesteps=50000"
    parser = commands.add_parser("resume", help=text, prefix_chars=NO_PREFIX, add_help=False)
    parser.add_argument("run", type=Path, help="the run's directory")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="keys to change, in Hydra's grammar")
    parser.set_defaults(command=_resume, usage=parser.format_help)


def _resume(arguments: argparse.Namespace) -> int:
    if _wrote_help(arguments, [str(arguments.run), *arguments.overrides]):
        return 0
    from offpolicy.config.overrides import load_values

    overrides = load_values(arguments.overrides)
    return int(_train_module().resume(_existing_run(arguments.run), overrides))


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


def _evaluate(arguments: argparse.Namespace) -> int:
    from offpolicy.analysis.runs import path_by_label

    paths = {label: _existing_run(path) for label, path in path_by_label(arguments.runs).items()}
    from offpolicy.commands.evaluate import evaluate

    return evaluate(paths, _choice(arguments), episodes=arguments.episodes, with_random=arguments.random)


def _add_play(commands: Any) -> None:
    text = "film a run's policy: offpolicy play RUN_DIR --video turning.gif"
    parser = commands.add_parser("play", help=text, description=text)
    parser.add_argument("run", type=_existing_run, help="the run's directory")
    parser.add_argument("--video", type=Path, required=True, help="file to write: .gif, or .mp4 with offpolicy[video]")
    parser.add_argument("--episodes", type=_positive, default=1, help="complete episodes (default: 1)")
    _add_policy_options(parser)
    parser.set_defaults(command=_play)


def _play(arguments: argparse.Namespace) -> int:
    from offpolicy.commands.play import play

    return play(arguments.run, _choice(arguments), video=arguments.video, episodes=arguments.episodes)


def _add_record(commands: Any) -> None:
    text = "write episodes of a run's policy as demonstrations: offpolicy record RUN_DIR --out demos.npz"
    parser = commands.add_parser("record", help=text, description=text)
    parser.add_argument("run", type=_existing_run, help="the run's directory")
    parser.add_argument("--out", type=Path, required=True, help="file to write: .npz, for replay.demos")
    parser.add_argument("--episodes", type=_positive, default=10, help="complete episodes (default: 10)")
    _add_policy_options(parser)
    parser.set_defaults(command=_record)


def _record(arguments: argparse.Namespace) -> int:
    from offpolicy.commands.record import record

    return record(arguments.run, _choice(arguments), out=arguments.out, episodes=arguments.episodes)


def _add_policy_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which policy acts where."""
    parser.add_argument("--seed", type=_not_negative, help="seed of the environments (default: that of the first run)")
    parser.add_argument("--step", type=_not_negative, help="checkpoint to load, in env steps (default: the newest)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<index> (default: auto)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="key=value", help="change the environment: --set env.kwargs.x=1"
    )


def _choice(arguments: argparse.Namespace) -> Any:  # Any: a class that is imported late
    """Returns the `PolicyChoice` of the options that `_add_policy_options` adds."""
    from offpolicy.commands.saved_run import PolicyChoice
    from offpolicy.config.overrides import load_values

    return PolicyChoice(arguments.seed, arguments.step, arguments.device, load_values(arguments.set))


def _add_explain(commands: Any) -> None:
    text = "say where a run's time went and what a change would bring: offpolicy explain RUN_DIR"
    parser = commands.add_parser("explain", help=text, description=text)
    parser.add_argument("run", type=_existing_run, help="the directory of a run that has ended")
    parser.add_argument(
        "--before", type=_existing_run, help="the run that one key was changed after: how right was it?"
    )
    parser.set_defaults(command=_explain)


def _explain(arguments: argparse.Namespace) -> int:
    from offpolicy.commands.explain import explain

    return explain(arguments.run, arguments.before)


def _add_trace(commands: Any) -> None:
    text = "read the trace of a run made with timing.trace=true: offpolicy trace RUN_DIR"
    parser = commands.add_parser("trace", help=text, description=text)
    parser.add_argument("run", type=_existing_run, help="the run's directory")
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
    parser.add_argument("--reference", type=float, help="score to reach (default: chosen from the curves)")
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


def _add_report(commands: Any) -> None:
    text = "write runs as one page, curves and time side by side: offpolicy report RUN [RUN ...] --html report.html"
    parser = commands.add_parser("report", help=text, description=text)
    parser.add_argument("runs", nargs="+", metavar="[label=]run", help="a run's directory, finished or not")
    parser.add_argument("--html", type=Path, required=True, help="file to write; it needs no other and no network")
    parser.set_defaults(command=_report)


def _report(arguments: argparse.Namespace) -> int:
    from offpolicy.commands.report import report

    return report(arguments.runs, arguments.html)


def _add_tune(commands: Any) -> None:
    text = "find a faster setting by short trials: offpolicy tune algo=td3 env=halfcheetah --minutes 2"
    parser = commands.add_parser("tune", help=text, description=text)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="the run, as for `offpolicy train`")
    parser.add_argument("--minutes", type=_minutes, default=2.0, help="time for all trials (default: 2)")
    parser.add_argument("--out", type=Path, default=Path("tune.txt"), help="file to write (default: tune.txt)")
    parser.add_argument("--keep", action="append", default=[], metavar="KEY", help="a key not to change, repeatable")
    parser.set_defaults(command=_tune)


def _tune(arguments: argparse.Namespace) -> int:
    from offpolicy.commands.tune import TuneOptions, tune

    return tune(arguments.overrides, TuneOptions(arguments.minutes, arguments.out, arguments.keep))


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0.0 < minutes < float("inf"):
        raise argparse.ArgumentTypeError(f"got {text}, allowed minutes above 0")
    return minutes


def _positive(text: str) -> int:
    return _whole_number(text, 1)


def _not_negative(text: str) -> int:
    return _whole_number(text, 0)


def _whole_number(text: str, least: int) -> int:
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"got {number}, allowed a whole number in [{least}, inf)")
    return number


def _wrote_help(arguments: argparse.Namespace, words: Sequence[str]) -> bool:
    """Writes the help of a command that takes overrides if one of `words` asks for it; True if so."""
    is_asked = any(word in ("-h", "--help") for word in words)
    if is_asked:
        sys.stdout.write(f"{arguments.usage()}\n{config_help()}\n")
    return is_asked


def _existing_run(path: Path | str) -> Path:
    """Returns `path` if it looks like a run's directory. Raises `ConfigError`, before torch is imported, if not."""
    run = Path(path)
    if not (run / "config.yaml").is_file():
        raise ConfigError(f"run: got {str(run)!r}, allowed the directory of a run (it has no config.yaml)")
    return run


def _train_module() -> ModuleType:
    """Imports `offpolicy.runners.train`, as the wheel installs it, or the checkout's `runners.train`."""
    package = "offpolicy.runners" if importlib.util.find_spec("offpolicy.runners") else "runners"
    return importlib.import_module(f"{package}.train")


if __name__ == "__main__":
    sys.exit(main())
