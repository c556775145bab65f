"""What the JSON files of a checkpoint say, checked value by value: right digests prove nothing about the content.

`state.json` holds what all ranks share, `rank-<k>.json` the random streams of a learner rank, `collector-<i>.json` the
counters and random streams of a collector. The launcher checks them all before it starts a process, so that a hostile
one costs that checkpoint only; whoever uses a value reads it here again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from offpolicy.checkpoint.manifest import Checkpoint
from offpolicy.errors import CheckpointError
from offpolicy.saved_fields import Fields, is_count

MODES = ("alternate", "overlap", "free")
KERNELS = ("textbook", "fast")
MOST_ROWS = 1 << 47  # of a ring, ever written
MOST_RANKS = 1 << 16  # learner ranks, collectors, or threads of a run
CHECKED_BYTES = (
    16 << 20
)  # of a collector's file, most of which its environments may fill: a larger one it checks itself

_PART = re.compile(r"(rank|collector)-([0-9]{1,9})\.json")


@dataclass(frozen=True, slots=True)
class SharedState:
    """`state.json`."""

    numbers: dict[str, int]  # of the learner
    env_steps: int
    num_collectors: int
    num_ranks: int
    start: tuple[int, int]  # env steps and updates at which learning began
    last_eval_step: int
    teacher: str | None
    replay_end: list[int]  # by ring
    fingerprint: dict[str, Any]

    @property
    def num_updates(self) -> int:
        """Updates of the learner."""
        return self.numbers["num_updates"]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> SharedState:
        """Raises `CheckpointError` for what no learner writes."""
        fields = state_fields(checkpoint)
        numbers = fields.fields("numbers")
        counted = {name: numbers.count(name) for name in numbers.as_mapping()}
        most_steps = checkpoint.env_steps
        if fields.count("env_steps") != most_steps:
            raise fields.refused("env_steps", f"{most_steps}, as its directory is called")
        first_step, first_update = fields.counts("start", 2)
        if first_update > numbers.count("num_updates"):
            raise fields.refused("start", f"at most {numbers.count('num_updates')} updates, the number of all")
        firsts = fields.counts("replay_first")
        ends = fields.counts("replay_end", len(firsts), MOST_ROWS)
        fields.counts("replay_written", len(firsts), MOST_ROWS)
        if any(first > end for first, end in zip(firsts, ends, strict=True)):
            raise fields.refused("replay_first", f"at most replay_end, {ends}")
        return cls(
            numbers=counted,
            env_steps=most_steps,
            num_collectors=fields.count("num_collectors", MOST_RANKS),
            num_ranks=fields.count("num_ranks", MOST_RANKS),
            start=(first_step, first_update),
            last_eval_step=fields.count("last_eval_step", most_steps),
            teacher=fields.optional_text("teacher"),
            replay_end=ends,
            fingerprint=fields.fields("fingerprint").as_mapping(),
        )


@dataclass(frozen=True, slots=True)
class RankStreams:
    """`rank-<k>.json`."""

    source: list[Any]  # what must be equal for the state of one batch source to fit another
    fresh_from: list[int]  # first row of each ring that the normaliser has not seen
    sampler: dict[str, Any]  # the batch source checks it
    updates: bytes  # state of the generator of the updates
    setting: tuple[int, str] | None  # threads and mode that a trial has chosen
    kernels: str  # that made the updates

    @classmethod
    def of(cls, checkpoint: Checkpoint, rank: int) -> RankStreams:
        """Raises `CheckpointError` for what no learner writes."""
        fields = Fields(checkpoint.path / f"rank-{rank}.json", checkpoint.json(f"rank-{rank}"))
        if not isinstance(fields.value("source"), list):
            raise fields.refused("source", "a list")
        kernels = fields.text("kernels")
        if kernels not in KERNELS:
            raise fields.refused("kernels", " or ".join(KERNELS))
        return cls(
            source=fields.value("source"),
            fresh_from=fields.counts("fresh_from", most=MOST_ROWS),
            sampler=fields.fields("sampler").as_mapping(),
            updates=fields.octets("updates"),
            setting=_setting(fields),
            kernels=kernels,
        )


@dataclass(frozen=True, slots=True)
class CollectorNumbers:
    """`collector-<i>.json`."""

    env_steps: int
    vector_steps: int
    policy_steps: int
    policy_lag_sum: float
    uniform: dict[str, Any]  # state of the generator of the first actions
    env: dict[str, Any] | None  # state of the environments; None: it could not be saved
    why_not_exact: str | None

    @classmethod
    def of(cls, checkpoint: Checkpoint, name: str) -> CollectorNumbers:
        """Raises `CheckpointError` for what no collector writes. `name`: of the file, without suffix."""
        fields = Fields(checkpoint.path / f"{name}.json", checkpoint.json(name, most_bytes=None))
        lag = fields.number("policy_lag_sum")
        if lag < 0:
            raise fields.refused("policy_lag_sum", "a number of at least 0")
        return cls(
            env_steps=fields.count("env_steps", checkpoint.env_steps),
            vector_steps=fields.count("vector_steps"),
            policy_steps=fields.count("policy_steps"),
            policy_lag_sum=lag,
            uniform=fields.fields("uniform").as_mapping(),
            env=None if fields.value("env") is None else fields.fields("env").as_mapping(),
            why_not_exact=None
            if fields.value("why_not_exact") is None
            else fields.text("why_not_exact", 1 << 20)[:500],
        )


def check_content(checkpoint: Checkpoint) -> None:
    """Raises `CheckpointError` for a checkpoint whose JSON files hold what no run writes."""
    state = SharedState.of(checkpoint)
    for file_name, record in checkpoint.files.items():
        match = _PART.fullmatch(file_name)
        if match is None:
            continue
        if match[1] == "rank":
            streams = RankStreams.of(checkpoint, int(match[2]))
            check_fresh(streams.fresh_from, state.replay_end, checkpoint)
        elif record.size <= CHECKED_BYTES:
            CollectorNumbers.of(checkpoint, f"collector-{match[2]}")


def check_fresh(fresh_from: list[int], replay_end: list[int], checkpoint: Checkpoint) -> None:
    """Raises `CheckpointError` unless there is a first row for each ring that the replay has."""
    if len(fresh_from) != len(replay_end) or any(map(int.__gt__, fresh_from, replay_end)):
        raise CheckpointError(
            f"{checkpoint.path}: fresh_from of a learner rank: got {fresh_from}, allowed one number of each ring,"
            f" at most replay_end of state.json, {replay_end}"
        )


def state_fields(checkpoint: Checkpoint) -> Fields:
    """Returns the values of `state.json`, to be read one by one."""
    return Fields(checkpoint.path / "state.json", checkpoint.json("state"))


def _setting(fields: Fields) -> tuple[int, str] | None:
    """Returns the threads and the mode that a trial has chosen; None before its end."""
    setting = fields.value("setting")
    if setting is None:
        return None
    is_pair = isinstance(setting, list) and len(setting) == 2
    if not is_pair or not is_count(setting[0], MOST_RANKS) or setting[1] not in MODES:
        raise fields.refused("setting", f"null or [threads, {' | '.join(MODES)}]")
    return setting[0], setting[1]
