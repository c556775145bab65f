"""A run and its repetition: what differs before the start, what is promised to be equal, and what came out."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from offpolicy.checkpoint import CHECKPOINTS, run_store
from offpolicy.config.parsing import is_within
from offpolicy.config.run_files import VERSION_NOTE
from offpolicy.config.schema import RunConfig
from offpolicy.errors import CheckpointError, ConfigError
from offpolicy.logger.summary import RunStatus, known_summary, last_summary

# Keys that change nothing that a run computes.
HARMLESS = ("run_dir", "resume", "log", "checkpoint.every", "checkpoint.every_min", "checkpoint.keep", "timing.trace")
START = re.compile(rf"{VERSION_NOTE}\d")  # of a comment: the other one of a start holds its command
DIRTY = "-dirty"
Section = Mapping[str, Any]  # Any: a nested mapping of summary.json


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a run was computed with."""

    versions: Mapping[str, str | None]
    commit: str | None
    cpu: str
    cores: int | None

    @classmethod
    def of_run(cls, run: Path) -> Circumstances:
        """Returns those of a finished run, from its summary. Raises `ConfigError` where it has none."""
        summary = last_summary(run)
        if not summary:
            raise ConfigError(f"run: {run} has no summary.json of its last start: there is nothing to compare with")
        hardware, started = summary.get("hardware", {}), summary.get("run", {})
        commit = started.get("git_commit")
        return cls(summary.get("versions", {}), commit, str(hardware.get("cpu")), hardware.get("cores"))

    def differences(self, now: Circumstances) -> list[str]:
        """Returns what is another one now, in words."""
        found = [
            f"{name} was {self.versions.get(name) or 'not installed'}, is {now.versions.get(name) or 'not installed'}"
            for name in dict.fromkeys([*self.versions, *now.versions])
            if self.versions.get(name) != now.versions.get(name)
        ]
        pairs = (("commit", self.commit, now.commit), ("cpu", self.cpu, now.cpu), ("cores", self.cores, now.cores))
        found += [f"{name} was {before}, is {after}" for name, before, after in pairs if before != after]
        if self.commit == now.commit and (self.commit or "").endswith(DIRTY):
            found.append(f"commit {self.commit} has changes that no commit holds: they may be others now")
        return found


def why_not_bitwise(  # noqa: PLR0913  # what is known of the repetition, each needed
    run: Path, cfg: RunConfig, changed: Sequence[str], *, has_gpu: bool, cores: int, has_evaluator: bool
) -> list[str]:
    """Returns the reasons for which the repetition need not equal the run bit for bit, apart from circumstances.

    `changed` are the keys whose values the command line changes; `has_evaluator`: evaluations run beside training.
    """
    summary = known_summary(run) or {}
    own = [key for key in changed if not is_within(key, HARMLESS)]
    on_gpu = cfg.device.startswith("cuda") or (cfg.device == "auto" and has_gpu) or _section(summary, "hardware", "gpu")
    reasons = {
        f"{', '.join(own)}: changed on the command line": bool(own),
        f"the run is {summary.get('status', 'not ended')}, not completed": summary.get("status") != RunStatus.COMPLETED,
        "the run was started more than once": num_starts(run) > 1,
        "a process of the run died and was started again": any(
            summary.get(name) for name in ("restarts", "learner_restarts")
        ),
        f"collect.mode={cfg.collect.mode or cfg.collect_mode}: which weights acted depends on timing": (
            not cfg.takes_turns
        ),
        "stop.reward, stop.patience: the env step of the end depends on when evaluations beside training are done": (
            has_evaluator and cfg.stop.is_set
        ),
        "a GPU promises no equal bits": bool(on_gpu),
        "threads.learner=auto: the number of threads that wins depends on the machine's load": (
            cfg.threads.learner == "auto" and cores > 1
        ),
    }
    return [reason for reason, holds in reasons.items() if holds]


def changed_since(run: Path, inputs: Mapping[str, Sequence[Path]]) -> list[str]:
    """Returns which files that a run has read were written after it had begun, in words. `inputs`: by key."""
    started = _section(known_summary(run) or {}, "run", "started")
    if not isinstance(started, str):
        return []
    began_s = datetime.fromisoformat(started).timestamp()
    return [
        f"{key}: {path} was written after the run had begun"
        for key, paths in inputs.items()
        for path in paths
        if path.exists() and path.stat().st_mtime >= began_s + 1.0  # the start is known to a second
    ]


def require_checkpoint(run: Path) -> None:
    """Raises `CheckpointError` where a run holds no parameters that a repetition could be held against."""
    store = run_store(run)
    if store.newest_valid(reads_rows=False) is None:
        problem = f"run: {run / CHECKPOINTS} holds no usable checkpoint, so there are no parameters to compare with"
        raise CheckpointError("\n".join([*store.rejected, problem]))


def num_starts(run: Path) -> int:
    """Returns how often a run was started, by the comments in its configuration."""
    try:
        lines = (run / "config.yaml").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(START.match(line) is not None for line in lines)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One result of both runs."""

    name: str
    is_equal: bool
    text: str


def outcomes(run: Path, again: Path) -> Iterator[Outcome]:
    """Yields each result of a run beside that of its repetition: counts, evaluation, episodes, parameters."""
    before, after = known_summary(run) or {}, known_summary(again) or {}
    for name, path in (("env steps", ("env_steps",)), ("updates", ("updates",))):
        yield _pair(name, _section(before, *path), _section(after, *path))
    for key in ("mean_reward", "std_reward"):
        yield _pair(f"evaluation {key}", _section(before, "eval", key), _section(after, "eval", key))
    yield _episodes(run, again)
    yield _parameters(run, again)


def _pair(name: str, before: object, after: object) -> Outcome:
    is_equal = before == after
    return Outcome(name, is_equal, f"{before}" if is_equal else f"{before}, again {after}")


def _section(summary: Section, *path: str) -> Any:  # Any: a value of summary.json
    found: Any = summary
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _episodes(run: Path, again: Path) -> Outcome:
    before, after = (episode_lines(path / "episodes.jsonl") for path in (run, again))
    pairs = list(zip(before, after, strict=False))
    first = next((index for index, (one, other) in enumerate(pairs) if one != other), None)
    if first is None and len(before) == len(after):
        return Outcome("training episodes", True, f"{len(before)} equal")
    counts = f"{len(before)}, again {len(after)}"
    if first is None:
        return Outcome("training episodes", False, counts)
    one, other = (each[first] for each in (before, after))
    where = f"episode {first + 1} ended at env step {one.get('env_steps')} with {one.get('ep_return')}"
    return Outcome("training episodes", False, f"{counts}; {where}, again {other.get('ep_return')}")


def episode_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the records of the training episodes of a run, by env step and environment, without torn lines."""
    records: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError):
            records.append(json.loads(line))
    return sorted(records, key=lambda each: (each.get("env_steps", 0), each.get("env_index", 0)))


def _parameters(run: Path, again: Path) -> Outcome:
    """Holds every tensor of the two newest learners beside the other: networks, targets, moments, normalisers."""
    found = [run_store(path).newest_valid(reads_rows=False) for path in (run, again)]
    if found[0] is None or found[1] is None:
        return Outcome("parameters", False, "a run holds no usable checkpoint")
    before, after = (checkpoint.tensors("learner") for checkpoint in found if checkpoint is not None)
    if before.keys() != after.keys() or any(before[name].shape != after[name].shape for name in before):
        return Outcome("parameters", False, "other tensors, or other shapes")
    unequal = [name for name in before if before[name].tobytes() != after[name].tobytes()]
    if not unequal:
        return Outcome("parameters", True, f"{len(before)} tensors, bit for bit")
    largest = max(float(np.abs(before[name] - after[name].astype(np.float64)).max()) for name in unequal)
    return Outcome(
        "parameters", False, f"{len(unequal)} of {len(before)} tensors differ, by at most {largest:.3g} ({unequal[0]})"
    )
