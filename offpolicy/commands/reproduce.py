"""`offpolicy reproduce RUN key=value ...`: the same run again in a new directory, and both results side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offpolicy.analysis.reproduction import (
    Circumstances,
    changed_since,
    outcomes,
    require_checkpoint,
    why_not_bitwise,
)
from offpolicy.checkpoint import run_store
from offpolicy.checkpoint.manifest import MANIFEST
from offpolicy.commands.trust import named_modules
from offpolicy.config.overrides import as_override, load_config, parse_overrides
from offpolicy.config.parsing import flatten
from offpolicy.config.run_files import read_values
from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.errors import EXIT_OK, ConfigError
from offpolicy.launch.resources import plan_host
from offpolicy.launch.run_dir import default_run_dir
from offpolicy.logger.console import shown_path
from offpolicy.logger.provenance import Provenance
from offpolicy.machine import cpu_model, has_gpu, num_usable_cores, usable_cpus, versions
from offpolicy.run_names import ROOT
from offpolicy.timing.clock import unix_s, wall_clock_stamp

DIFFERS = 1  # exit code where equal bits were promised and are not there


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A run, the configuration of its repetition, and why their bits may differ."""

    run: Path
    cfg: RunConfig
    differences: tuple[str, ...]  # of versions and machine
    reasons: tuple[str, ...]  # others

    @property
    def is_bitwise(self) -> bool:
        """True if the results are promised to be equal bit for bit."""
        return not self.differences and not self.reasons


def reproduce(run: Path, words: Sequence[str], train: Callable[[RunConfig], int]) -> int:
    """Runs the configuration of `run` again, with `words` changed, and prints the differences before and after.

    Returns the exit code of the training, and `DIFFERS` if equal bits were promised and are not there. Raises
    `ConfigError`, or `CheckpointError` where there is nothing to compare with, before anything is started.
    """
    plan = plan_reproduction(run, words)
    sys.stdout.write("".join(f"{line}\n" for line in _before(plan)))
    sys.stdout.flush()
    code = train(plan.cfg)
    if code != EXIT_OK:
        sys.stderr.write(f"offpolicy: the repetition ended with {code}: nothing is compared\n")
        return code
    return conclude(plan)


def plan_reproduction(run: Path, words: Sequence[str]) -> Reproduction:
    """Returns what will be run, and what differs from before. Raises `ConfigError` or `CheckpointError`."""
    before = Circumstances.of_run(run)
    require_checkpoint(run)
    given = parse_overrides(words)
    if given.groups:
        fix = "allowed single keys, such as algo.gamma=0.98: the groups are those of the run"
        raise ConfigError([f"{name}: got {option!r}, {fix}" for name, option in given.groups.items()])
    cfg = load_config([f"config={as_override(str(run))}", *words])
    if cfg.run_dir is None:
        cfg = replace(cfg, run_dir=str(default_run_dir(ROOT, cfg.algo.name, cfg.env.id, wall_clock_stamp(), cfg.seed)))
    if Path(cfg.run_dir or "").exists():
        raise ConfigError(f"run_dir: got {cfg.run_dir!r}, allowed a directory that does not exist: the run begins anew")
    reasons = why_not_bitwise(
        run,
        cfg,
        _changed_keys(run, cfg, given.values),
        has_gpu=has_gpu(),
        cores=num_usable_cores(),
        has_evaluator=plan_host(cfg, HostInfo()).has_evaluator,
    )
    reasons += changed_since(run, _inputs(run, cfg))
    return Reproduction(run, cfg, tuple(before.differences(_now())), tuple(reasons))


def _changed_keys(run: Path, cfg: RunConfig, given: Mapping[str, Any]) -> list[str]:
    """Returns the given keys that have another value than in the run."""
    values, before = flatten(cfg.to_mapping()), flatten(read_values(run / "config.yaml"))
    return [key for key in flatten(given) if key not in before or values[key] != before[key]]


def _inputs(run: Path, cfg: RunConfig) -> dict[str, list[Path]]:
    """Returns the files that the run reads beside its configuration, by key: modules, rows, networks of other runs."""
    found: dict[str, list[Path]] = {}
    for named in named_modules(run / "config.yaml"):
        if named.key in ("env.id", "env.wrappers"):  # hooks and callbacks change nothing that is learnt
            found.setdefault(named.key, []).extend(named.places)
    if cfg.replay.demos is not None:
        demos = Path(cfg.replay.demos)
        found["replay.demos"] = [*demos.rglob("*")] if demos.is_dir() else [demos]
    for key, source in (("teacher", cfg.teacher), ("init_from", cfg.init_from)):
        if source is not None:  # a run names the directory; where it is gone, the training says so
            newest = run_store(Path(source)).newest_valid(reads_rows=False)
            found[key] = [] if newest is None else [newest.path / MANIFEST]
    return found


def _now() -> Circumstances:
    """Returns the circumstances of a run that starts now."""
    return Circumstances(versions(), Provenance.of_this_process(unix_s()).git_commit, cpu_model(), usable_cpus())


def _before(plan: Reproduction) -> list[str]:
    lines = [f"reproduce   {shown_path(plan.run)} in {plan.cfg.run_dir}"]
    lines += [f"differs     {each}" for each in plan.differences]
    lines += [f"not bitwise {each}" for each in plan.reasons]
    promise = "versions, machine and settings are those of the run: equal bit for bit" if plan.is_bitwise else None
    return [*lines, f"promised    {promise or 'no equal bits, for these reasons'}"]


def conclude(plan: Reproduction) -> int:
    """Prints the results of both runs side by side, and returns the exit code."""
    found = list(outcomes(plan.run, Path(plan.cfg.run_dir or "")))
    lines = [f"{'equal' if each.is_equal else 'differs':<11} {each.name}: {each.text}" for each in found]
    is_equal = all(each.is_equal for each in found)
    if is_equal:
        lines.append("result      reproduced, bit for bit")
    elif plan.is_bitwise:
        lines.append("result      NOT reproduced, though equal bits were promised: please report it")
    else:
        runs = f"{shown_path(plan.run)} {shown_path(Path(plan.cfg.run_dir or ''))}"
        lines.append(f"result      other numbers; offpolicy compare {runs} says if they matter")
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return DIFFERS if plan.is_bitwise and not is_equal else EXIT_OK
