"""What must hold after every life of a run, read from its directory and its output only.

I1 no torn row, I2 counters never go back, I3 the newest complete checkpoint is the one that is loaded, I4 no process is
left, I5 no residue after the next start, I6 exit 0 and only then the goal is reached, I7 the last line on stderr names
the culprit, I8 every end within its deadline. I4 and I8 are watched where the run is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from offpolicy.replay.row_layout import RowLayout
from tests.chaos.chain_env import ACTION_DIM, OBS_DIM, WIDTH, wrong_rows
from tests.chaos.ends import IN_WORDS, End, Named, named_ends
from tests.replay_scene import transitions_of

SLOTS = RowLayout(OBS_DIM, ACTION_DIM)
STEP = re.compile(r"(?:\.replaced-)?step-([0-9]{12})")
RESUMING = re.compile(r"resuming at env step ([0-9,]+)")
REFUSAL = re.compile(r"offpolicy: (?!warning: )\S|  \S.*: ")  # nothing was started: the command is refused
NOT_REMOVED = re.compile(r"^warning: .* not removed: .*injected at disk\.remove", re.MULTILINE)
TEMPORARY = re.compile(r"\.tmp-|\.snapshot-|\.replaced-|\.tmp$")


def newest_checkpoint(run: Path) -> int | None:
    """The env steps of the newest complete checkpoint, by its name; None without one."""
    names = [path.name for path in (run / "checkpoints").glob("*step-*")] if run.is_dir() else []
    return max((int(match[1]) for match in map(STEP.fullmatch, names) if match), default=None)


def check_start(end: End, before: int | None) -> Iterator[str]:
    """I3: the checkpoint that was there is the one that is loaded. Ends before the header say nothing."""
    said = RESUMING.search(end.stdout)
    if said is None:
        # A checkpoint at env step 0 is where a run begins, and nothing is said of it.
        if before and "already complete" not in end.stdout and _has_begun(end):
            yield f"I3: checkpoint {before} was there, and the run began again"
    elif before is None or int(said[1].replace(",", "")) < before:
        yield f"I3: resumed at {said[1]}, though checkpoint {before} was there"


def _has_begun(end: End) -> bool:
    return "learner 0: " in end.stdout  # long after the line about resuming


def check_end(run: Path, end: End, total: int) -> Iterator[str]:
    """I6 and I7 of one life."""
    if end.is_supervisor_hit:
        return
    named = [one for one in named_ends(end) if one.code == end.code]
    if not named:
        yield f"I6: exit code {end.code}, which no document names for this"
    summary = _json(run / "summary.json")
    is_done = summary.get("status") == "completed" and summary.get("env_steps", 0) >= total
    # A start that is refused writes no summary: what is there is that of a life before.
    if (end.code == 0) != is_done and (end.code == 0 or end.is_announced):
        said = f"{summary.get('status')} at {summary.get('env_steps')} of {total}"
        yield f"I6: exit {end.code}, but summary.json says {said}"
    if end.code in (1, 2, 70, 74):
        yield from _check_culprit(end, named)


def _check_culprit(end: End, named: list[Named]) -> Iterator[str]:
    """I7: the last line names the process that failed and why, or before the run is announced what is refused."""
    last = end.last_line
    words = IN_WORDS.match(last)
    if words is None and (end.is_announced or not REFUSAL.match(last)):
        yield f"I7: exit {end.code}, and the last line on stderr is {last!r}"
        return
    role, cause = ("", end.stderr) if words is None else (words["role"], words["cause"])
    fits = [one for one in named if (role in one.roles or not role) and re.search(one.cause, cause)]
    if named and not fits:
        done = ", ".join([*end.fired, *(f"{hit.number} to {hit.role}" for hit in end.hits)])
        yield f"I7: exit {end.code} is not explained by {done}: {last!r}"


def check_records(run: Path) -> Iterator[str]:
    """I2: (env_steps, n_updates) rises from record to record, and the env steps of an environment's episodes do."""
    metrics, episodes = (list(_lines(run / name)) for name in ("metrics.jsonl", "episodes.jsonl"))
    yield from (f"I2: {torn}" for torn in [*metrics, *episodes] if isinstance(torn, str))
    course = [(line["env_steps"], line.get("train/n_updates", 0)) for line in metrics if isinstance(line, dict)]
    yield from _falls("metrics.jsonl", course)
    by_env: dict[int, list[tuple[float, float]]] = {}
    for line in episodes:
        if isinstance(line, dict):
            by_env.setdefault(line["env_index"], []).append((line["env_steps"], 0))
    for index, ends in by_env.items():
        yield from _falls(f"episodes.jsonl, environment {index},", ends)


def _lines(path: Path) -> Iterator[dict[str, Any] | str]:
    """The records of a file, and a text for each torn line but the last, which a reader leaves out."""
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    for number, line in enumerate(lines):
        try:
            yield json.loads(line)
        except ValueError:
            if number < len(lines) - 1:
                yield f"line {number + 1} of {len(lines)} of {path.name} is torn"


def _falls(what: str, course: list[tuple[float, float]]) -> Iterator[str]:
    falls = [(one, two) for one, two in pairwise(course) if one >= two]
    if falls:
        yield f"I2: {what} goes from {falls[0][0]} to {falls[0][1]}, {len(falls)} times"


def check_all_rows(run: Path) -> Iterator[str]:
    """I1: the last checkpoint holds every row that it names, once, and one was written for every env step.

    A collector that is killed, and not started again, may have written the rows of a step that it did not count.
    """
    checkpoint = max((run / "checkpoints").glob("step-*"), default=None)
    state = {} if checkpoint is None else _json(checkpoint / "state.json")
    if checkpoint is None or not state.get("replay_end"):
        yield "I1: the last checkpoint names no rows"
        return
    for ring, (first, end) in enumerate(zip(state["replay_first"], state["replay_end"], strict=True)):
        parts = sorted(checkpoint.glob(f"replay-{ring}-*.f32"))
        begin = int(parts[0].stem.rpartition("-")[2]) if parts else 0
        saved_end = begin + sum(path.stat().st_size for path in parts) // SLOTS.nbytes
        rows = saved_transitions(checkpoint, ring) if parts else np.empty((0, WIDTH))
        if begin > first or saved_end != end:
            yield f"I1: ring {ring} names rows {first} to {end}, and {begin} to {saved_end} are saved"
        elif (num_twice := len(rows) - len(np.unique(rows, axis=0))) > 0:
            yield f"I1: {num_twice} of {len(rows)} rows of ring {ring} are there twice"
    num_written = sum(state["replay_written"])
    if not 0 <= num_written - state["env_steps"] <= 2 * len(state["replay_end"]):  # no scene has more environments
        yield f"I1: {num_written} rows were written in {state['env_steps']} env steps"


def check_rows(run: Path) -> Iterator[str]:
    """I1: every saved row is a transition of the environment."""
    for checkpoint in sorted((run / "checkpoints").glob("[!.]*")):
        for path in sorted(checkpoint.glob("replay-*.f32")):
            if path.stat().st_size % SLOTS.nbytes:
                yield f"I1: {path.name} holds {path.stat().st_size} bytes, no multiple of {SLOTS.nbytes}"
        for ring in sorted({path.name.removesuffix(".f32").split("-")[1] for path in checkpoint.glob("replay-*.f32")}):
            rows = saved_transitions(checkpoint, int(ring))
            if wrong := wrong_rows(rows):
                yield f"I1: {wrong} of {len(rows)} rows of ring {ring} of {checkpoint.name} are wrong"


def saved_transitions(checkpoint: Path, ring: int) -> NDArray[np.float32]:
    """All saved transitions [n, WIDTH] of a ring, older than those named included."""
    paths = [*sorted(checkpoint.glob(f"replay-{ring}-*.f32")), checkpoint / f"ahead-{ring}.f32"]
    width, parts = SLOTS.slot_width, [np.fromfile(path, "<f4") for path in paths]
    slots = np.concatenate([part[: len(part) // width * width].reshape(-1, width) for part in parts])
    num_envs = yaml.safe_load((checkpoint.parents[1] / "config.yaml").read_text())["env"]["num_envs"]
    return transitions_of(slots, len(slots) - len(parts[-1]) // width, SLOTS, num_envs)


def check_residue(run: Path, stdout: str) -> Iterator[str]:
    """I5: a run that reached its goal has left no draft, no part of a snapshot and no temporary file.

    If the disk refused to remove one, `stdout` of its last life says so.
    """
    found = sorted(path.name for path in run.rglob("*") if TEMPORARY.search(path.name))
    if found and not NOT_REMOVED.search(stdout):
        yield f"I5: {', '.join(found)} are left"


def check_same_end(run: Path, reference: Path) -> Iterator[str]:
    """Bitwise: networks, collectors, random streams and rows are those of a run that nothing happened to."""
    one, two = (
        next(iter(sorted((path / "checkpoints").glob("step-*"), reverse=True)), None) for path in (run, reference)
    )
    if one is None or two is None or one.name != two.name:
        yield f"bitwise: the last checkpoint is {one and one.name}, without disturbance {two and two.name}"
        return
    got, expected = _contents(one), _contents(two)
    for name in sorted(got.keys() | expected.keys()):
        if got.get(name) != expected.get(name):
            yield f"bitwise: {name} differs from a run without disturbance"


def _contents(checkpoint: Path) -> dict[str, object]:
    """What a checkpoint holds: the files of tensors, the fields of the other files, and the rows of each ring.

    The segments of a ring are one, since they depend on when was saved. So does the manifest, of what it lists.
    """
    found: dict[str, object] = {path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")}
    for path in checkpoint.glob("*.json"):
        if path.name != "MANIFEST.json":
            found |= {f"{path.name}: {key}": value for key, value in json.loads(path.read_text()).items()}
    for ring, first in enumerate(_json(checkpoint / "state.json").get("replay_first", [])):
        parts = sorted(checkpoint.glob(f"replay-{ring}-*.f32"))
        begin = int(parts[0].stem.rpartition("-")[2])
        found[f"replay-{ring}"] = b"".join(path.read_bytes() for path in parts)[SLOTS.nbytes * (first - begin) :]
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    except (OSError, ValueError):
        return {}
