"""`offpolicy reproduce RUN key=value ...`: the same run again in a new directory, and both results side by side."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from offpolicy.checkpoint import run_store
from offpolicy.commands.options import TRUST
from offpolicy.commands.train import train_module
from offpolicy.commands.trust import check_source
from offpolicy.config.overrides import as_override, load_config
from offpolicy.config.parsing import flatten, is_within
from offpolicy.config.run_files import read_config
from offpolicy.errors import EXIT_OK, ConfigError
from offpolicy.launch.run_dir import default_run_dir
from offpolicy.logger.console import shown_path
from offpolicy.runs import ROOT, existing_run, last_summary
from offpolicy.timing.clock import wall_clock_stamp

DIFFERS = 1  # exit code where equal bits are promised and are not there
HARMLESS = ("run_dir", "resume", "log", "checkpoint.every", "checkpoint.every_min", "checkpoint.keep", "timing.trace")
# Of `summary.json`: what the bits of a run depend on, and what it has computed.
CIRCUMSTANCES = ("versions", "hardware", "run.git_commit", "status", "restarts", "learner_restarts")
RESULTS = ("env_steps", "updates", "eval")
Facts = Mapping[str, object]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run and the keys to change."""
    parser.add_argument("run", type=existing_run, help="a run: its directory, the beginning of its name, or latest")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="keys to change, such as run_dir=runs/again")
    parser.add_argument(TRUST, action="store_true", help="import code that lies in the run's directory")


def run(arguments: argparse.Namespace) -> int:
    """Trains with the configuration of a run, and keys changed; prints the results beside those of the run.

    Returns the exit code of the training, or `DIFFERS` for other bits where equal ones are promised.
    """
    run, words = arguments.run, [f"config={as_override(str(arguments.run))}", *arguments.overrides]
    check_source(words, is_trusted=arguments.trust)
    cfg = load_config(words)
    again = Path(cfg.run_dir or default_run_dir(ROOT, cfg.algo.name, cfg.env, wall_clock_stamp(), cfg.seed))
    if again.exists() or not last_summary(run):
        raise ConfigError(f"reproduce: got {run} in {again}, allowed a run that has ended, in a new directory")
    sys.stdout.write(f"reproduce   {shown_path(run)} in {again}\n")
    sys.stdout.flush()
    if (code := int(train_module().train(replace(cfg, run_dir=str(again))))) != EXIT_OK:
        return code
    (given, before), (now, after) = facts(run), facts(again)
    reasons = changes(given, now)
    if str(given["run.git_commit"]).endswith("-dirty"):
        reasons.append(f"run.git_commit: the changes of {given['run.git_commit']} are not known")
    if not cfg.takes_turns or cfg.threads.learner == "auto" or now["hardware.gpu"]:
        reasons.append("equal bits need collect.mode=alternate, a number for threads.learner, and the CPU")
    lines = [f"not bitwise {reason}" for reason in reasons]
    lines += [f"equal       {name}: {value}" for name, value in before.items() if value == after[name]]
    lines += [f"differs     {change}" for change in changes(before, after)]
    result = "NOT reproduced, though equal bits are promised: please report it"
    if before == after:
        result = "reproduced, bit for bit"
    elif reasons:
        result = f"other numbers; offpolicy compare {shown_path(run)} {shown_path(again)} says if they matter"
    sys.stdout.write("\n".join([*lines, f"result      {result}\n"]))
    return EXIT_OK if before == after or reasons else DIFFERS


def changes(old: Facts, new: Facts) -> list[str]:
    """Returns what is another one in `new`, in words."""
    return [f"{key}: was {old.get(key)}, is {new.get(key)}" for key in {**old, **new} if old.get(key) != new.get(key)]


def facts(run: Path) -> tuple[Facts, Facts]:
    """Returns what the bits of a run depend on, and what it has computed, the digests of episodes and tensors too."""
    config, summary = flatten(read_config(run).to_mapping()), flatten(last_summary(run))
    given = {key: value for key, value in config.items() if not is_within(key, HARMLESS)}
    given |= {key: value for key, value in summary.items() if is_within(key, CIRCUMSTANCES)}
    results: dict[str, object] = {key: value for key, value in summary.items() if is_within(key, RESULTS)}
    newest = run_store(run).newest_valid(reads_rows=False)
    episodes = sorted((run / "episodes.jsonl").read_bytes().splitlines(keepends=True))
    tensors = sorted(newest.tensors("learner").items()) if newest else []
    parameters = [name.encode() + tensor.tobytes() for name, tensor in tensors]
    for name, parts in {"training episodes": episodes, "parameters": parameters}.items():
        results[name] = f"{len(parts)}, sha256 {hashlib.sha256(b''.join(parts)).hexdigest()[:16]}"
    return given, results
