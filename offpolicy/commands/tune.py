"""`offpolicy tune key=value ...`: short real trials of the settings that decide the speed, and overrides to type."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from offpolicy.analysis.search import NO_TIME, EvaluationPlan, Row, Search, Tuning
from offpolicy.analysis.tuning import (
    BUSY,
    KEYS,
    Machine,
    Measured,
    Move,
    TrialFailed,
    Values,
    held_keys,
    moves,
    start_values,
)
from offpolicy.commands.trial import Trial, trial_overrides
from offpolicy.config.overrides import load_config, parse_overrides, read_words
from offpolicy.config.parsing import flatten, is_within, merge
from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.envs.vectorization import resolve_vectorization
from offpolicy.errors import ConfigError, OffPolicyError, SaveError
from offpolicy.files import output_file
from offpolicy.launch.preflight import cuda_memory, preflight
from offpolicy.launch.resources import learner_threads, plan_host
from offpolicy.logger.console import plain_console
from offpolicy.machine import has_gpu, num_usable_cores
from offpolicy.start import interrupted_code, stops_interrupt
from offpolicy.timing.clock import Stopwatch

KEPT_AS_IT_IS = "algo, runner, seed and all other keys: a trial is the same run in every other way"


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The options of the command."""

    minutes: float
    out: Path
    keep: Sequence[str]
    trust: Sequence[str] = ()  # `--trust`, if it was given


def tune(words: Sequence[str], options: TuneOptions) -> int:
    """Runs the trials, prints predicted beside measured, and writes the overrides of the fastest setting.

    Raises `ConfigError` before any trial, as `offpolicy train` would, `OffPolicyError` if the first trial fails, and
    `SaveError`.
    """
    watch = Stopwatch()
    cfg = load_config(words)
    cfg = replace(cfg, env=resolve_vectorization(cfg.env))
    _check(options)
    preflight(cfg)
    held = held_keys(cfg, list(flatten(parse_overrides(words).values)), options.keep)
    console = plain_console()
    with tempfile.TemporaryDirectory(prefix="offpolicy-tune-") as directory:
        search = _search(cfg, words, held, Path(directory), watch, options, console)
        try:
            with stops_interrupt():
                tuning = search.run()
        except KeyboardInterrupt as error:
            console.print("interrupted: nothing is written")
            _print(console, search.result, held)
            return interrupted_code(error)
        except TrialFailed as failure:
            raise OffPolicyError(f"the run cannot be tuned, its first trial failed: {failure}") from None
    _print(console, tuning, held)
    best = [*words, *_overrides(tuning.values), *options.trust]
    found = "" if tuning.values else f"{_why_none(tuning, options.minutes)}: "
    console.print(f"{found}{shlex.join(['offpolicy', 'train', *best])}", soft_wrap=True)
    _write(options.out, best)
    console.print(
        f"written: {options.out}, for `offpolicy train $(cat {shlex.quote(str(options.out))})`", soft_wrap=True
    )
    return 0


def _why_none(tuning: Tuning, minutes: float) -> str:
    """Returns why no setting is faster than the start."""
    if len(tuning.rows) > 1:
        return "no change was faster, or not again when repeated"
    if NO_TIME in tuning.not_tried.values():
        return f"no change was tried: --minutes {minutes:g} leaves no time for one on this machine; give more"
    return "no change was tried: none promises to be faster"


def _check(options: TuneOptions) -> None:
    """Refuses options that would fail after the trials. Raises `ConfigError`."""
    problems = [
        f"--keep: got {key!r}, allowed {', '.join(KEYS)}, or a section of them"
        for key in options.keep
        if not any(is_within(known, (key,)) for known in KEYS)
    ]
    out = options.out.resolve()
    place = out.parent if out.is_file() or not out.exists() else out  # a file is replaced, a pipe is written to
    if not out.parent.is_dir() or out.is_dir() or not os.access(place, os.W_OK):
        problems.append(f"--out: got {str(options.out)!r}, allowed a file in a directory that exists and is writable")
    if HostInfo.of_launcher().job:
        problems.append("tune: started by torchrun, allowed on one host: run it alone")
    if problems:
        raise ConfigError(problems)


def _search(  # noqa: PLR0913  # the parts that the command has made
    cfg: RunConfig,
    words: Sequence[str],
    held: dict[str, str],
    directory: Path,
    watch: Stopwatch,
    options: TuneOptions,
    console: Console,
) -> Search:
    numbers, machine = count(), Machine(num_usable_cores(), learns_on_gpu(cfg))

    def run_trial(values: Values, eval_every: int) -> Measured:
        own = with_values(cfg, values)
        added = [*_overrides(values), *trial_overrides(own, eval_every)]
        changed = RunConfig.from_mapping(merge(own.to_mapping() | {"sinks": {}}, parse_overrides(added).values))
        trial = [*read_words(words, changed), *added]
        path = directory / str(next(numbers))
        return Trial(trial, path, tries_settings(own, machine), evaluates=eval_every > 0).measure()

    def moves_from(values: Values) -> list[Move]:
        now = with_values(cfg, values)
        return [move for move in moves(now, held, machine, trial_threads(now)) if is_allowed(now, move)]

    def report(row: Row) -> None:
        threads = f" (learner threads: {row.measured.threads})" if row.measured and row.measured.threads else ""
        rate = f"{_rate(row.measured)} env steps/s{threads}, " if row.measured else ""
        console.print(f"{watch.elapsed_s():4.0f} s  {row.change}: {rate}{_verdict(row)}", soft_wrap=True)

    beside = str(plan_host(cfg, HostInfo()).has_evaluator).lower()
    plan = None if "eval.beside" in held else EvaluationPlan(beside, cfg.eval.every, cfg.eval.episodes)
    start, budget_s = start_values(cfg, machine, trial_threads(cfg)), 60.0 * options.minutes
    return Search(start, run_trial, moves_from, watch.elapsed_s, budget_s, plan, report=report)


def learns_on_gpu(cfg: RunConfig) -> bool:
    """True if the runs of this configuration learn on a GPU: torch, in a child process, finds one behind the driver."""
    return cfg.device != "cpu" and has_gpu() and bool(cuda_memory(cfg.runner.start_timeout_s).free)


def trial_threads(cfg: RunConfig) -> int:
    """Returns the threads with which each learner rank of a trial begins: most of them have no evaluator."""
    return learner_threads(cfg, has_evaluator=False)


def with_values(cfg: RunConfig, values: Values) -> RunConfig:
    """Returns the configuration with other values of dotted keys. Raises `ConfigError`."""
    tree = cfg.to_mapping()
    for key, value in values.items():
        section, _, name = key.partition(".")
        tree = merge(tree, {section: {name: value}})
    return RunConfig.from_mapping(tree)


def is_allowed(cfg: RunConfig, move: Move) -> bool:
    """True if the configuration stays a valid one."""
    try:
        with_values(cfg, move.values)
    except ConfigError:
        return False
    return True


def tries_settings(cfg: RunConfig, machine: Machine) -> bool:
    """True if the run tries threads or modes in its first seconds (`training/speed_tuner.py`)."""
    tries_threads = cfg.threads.learner == "auto" and not machine.learns_on_gpu and machine.num_cores > 1
    return cfg.runner.world_size == 1 and (tries_threads or cfg.collect.mode == "auto")


def _overrides(values: Values) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _write(path: Path, words: Sequence[str]) -> None:
    """Writes one override per line. Raises `SaveError`."""
    try:
        with output_file(path) as file:
            file.write("".join(f"{word}\n" for word in words).encode())
    except OSError as error:
        raise SaveError(f"{path}: {error.strerror}") from error


def _print(console: Console, tuning: Tuning, held: dict[str, str]) -> None:
    """Prints the trials, what was not tried, what was not touched, and who else used the cores."""
    if not tuning.rows:
        return
    console.print("", tuning_table(tuning.rows))
    for change, reason in tuning.not_tried.items():
        console.print(f"not tried    {change}: {reason}")
    for key, reason in held.items():
        console.print(f"not touched  {key}: {reason}")
    console.print(f"not touched  {KEPT_AS_IT_IS}")
    for key in tuning.values:
        if KEYS[key]:
            console.print(f"note         {key}: {KEYS[key]}")
    busiest = max((row.measured.busy for row in tuning.rows if row.measured is not None), default=0.0)
    if busiest > BUSY:
        text = f"other programs used up to {busiest:.0%} of the cores: on idle cores the result may be another one"
        console.print(f"busy         {text}")
    console.print()


def tuning_table(rows: Sequence[Row]) -> Table:
    """Returns one row per trial: env steps per second predicted and measured, the middle half of its intervals."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title="env steps per second")
    table.add_column("trial", overflow="fold", min_width=24)
    for name in ("predicted", "measured", "middle half", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold", max_width=12)
    start = rows[0].measured
    for row in rows:
        predicted = "" if row.predicted is None else f"{row.predicted:.0f}"
        cells = ["", "", ""]
        if (now := row.measured) is not None and start is not None:
            low, high = now.quartiles
            cells = [_rate(now), f"{low:.0f}-{high:.0f}", f"{now.rate / start.rate:.2f}"]
        table.add_row(row.change, predicted, *cells, _verdict(row))
    return table


def _verdict(row: Row) -> str:
    """Returns the verdict of a trial, with `busy` where other programs used the cores, `still tuning` where it did."""
    if row.measured is None:
        return row.verdict
    busy = " (busy)" if row.measured.busy > BUSY else ""
    return row.verdict + busy + ("" if row.measured.is_settled else " (still tuning)")


def _rate(measured: Measured) -> str:
    return f"{measured.rate:.0f}"
