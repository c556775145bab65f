"""The rows of the panel's account: which phases of a side are shown, with how much of its wall."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from offpolicy.logger.console import number
from offpolicy.logger.metrics import COLLECTOR_ROWS, LEARNER_ROWS, METRICS, collector_key, learner_key
from offpolicy.logger.record import Record, RunHeader
from offpolicy.timing.bottleneck import Verdict
from offpolicy.timing.phases import LEARNER_WAITS, CollectorPhase, LearnerPhase

# The rows of the contract stand in every panel, in this order.
STANDING = (
    LearnerPhase.COLLECTOR_WAIT,
    LearnerPhase.REPLAY_BATCH_WAIT,
    LearnerPhase.H2D,
    LearnerPhase.RANK_BARRIER,
    LearnerPhase.SYNC_COORDINATION,
    LearnerPhase.TRAIN,
    LearnerPhase.PARAM_SYNC,
)
# The other rows of the learner, those first that keep theirs where lines are scarce.
OPTIONAL = (
    LearnerPhase.REPLAY_SAMPLE,
    LearnerPhase.EVALUATION,
    LearnerPhase.CHECKPOINT,
    LearnerPhase.WEIGHT_PUBLISH,
    LearnerPhase.OTHER,
    LearnerPhase.LOG,
)
COLLECTOR_STANDING = (
    CollectorPhase.LEARNER_WAIT,
    CollectorPhase.ENV_STEP,
    CollectorPhase.ACTION_SELECT,
)
COLLECTOR_OPTIONAL = (
    CollectorPhase.REPLAY_WRITE,
    CollectorPhase.WEIGHT_APPLY,
    CollectorPhase.HANDSHAKE,
    CollectorPhase.OTHER,
    CollectorPhase.SNAPSHOT,
)
WAITS = frozenset({*map(str, LEARNER_WAITS), str(CollectorPhase.LEARNER_WAIT)})


class Side(NamedTuple):
    """One clock: its phases with rows, the keys of its phases and wall, and the key of its process's CPU time."""

    name: str
    unit: str
    kind: type[LearnerPhase] | type[CollectorPhase]
    standing: Sequence[str]
    optional: Sequence[str]
    rows: Mapping[str, str]  # names by phase
    phase_key: Callable[[str], str]
    wall_key: str
    cpu_key: str


LEARNER = Side(
    "Learner", "ms/iteration", LearnerPhase, STANDING, OPTIONAL, LEARNER_ROWS, learner_key,
    "perf/iter_ms", "cpu/learner_pct",
)  # fmt: skip
COLLECTOR = Side(
    "Collector", "ms/vector step", CollectorPhase, COLLECTOR_STANDING, COLLECTOR_OPTIONAL, COLLECTOR_ROWS,
    collector_key, "perf/collector_cycle_ms", "cpu/collector_pct",
)  # fmt: skip


class Row(NamedTuple):
    """A phase, or several together, of one side's wall. `note` stands in place of the time where there can be none."""

    name: str
    ms: float | None
    share: float | None  # of the wall, 0 to 1
    note: str = ""
    is_wait: bool = False
    is_bottleneck: bool = False
    is_wall: bool = False


def account_rows(  # noqa: PLR0913  # what is shown, and the room for it
    side: Side,
    record: Record,
    verdict: Verdict | None,
    header: RunHeader,
    seen: Collection[str],
    room: int,
    *,
    is_full: bool = False,
) -> list[Row]:
    """Returns the rows of a side, `room` of them at most, but never without those that always stand.

    `seen` are the keys that have held time in this run: only these have a row beyond the standing ones, unless
    `is_full`. Those without room are one row together. The wall has the last row, where there is room for it.
    """
    wall_ms = number(record, side.wall_key)
    named = _named_phase(verdict, side)
    standing = list(side.standing)
    possible = [phase for phase in side.optional if is_full or phase == named or side.phase_key(phase) in seen]
    possible.sort(key=lambda phase: phase != named)
    has_wall = room > len(standing)
    left = room - len(standing) - has_wall
    shown = possible if len(possible) <= left else possible[: max(0, left - 1)]
    rows = [_row(side, phase, record, header, wall_ms, named) for phase in _ordered(side, standing, shown)]
    rest = [phase for phase in possible if phase not in shown]
    if rest and left > 0:
        rows.append(_together(side, rest, record, wall_ms))
    if has_wall:
        rows.append(Row(METRICS[side.wall_key].row, wall_ms, 1.0 if wall_ms else None, is_wall=True))
    return rows


def num_rows(side: Side, seen: Collection[str], *, is_full: bool) -> int:
    """Returns how many rows there are where there is room for all."""
    optional = [phase for phase in side.optional if is_full or side.phase_key(phase) in seen]
    return len(side.standing) + len(optional) + 1


def _named_phase(verdict: Verdict | None, side: Side) -> str | None:
    """Returns the phase of this side that the verdict names: both sides have phases of one name, such as `other`."""
    phase = verdict.phase if verdict is not None else None
    return str(phase) if isinstance(phase, side.kind) else None


def _ordered(side: Side, standing: Sequence[str], optional: Sequence[str]) -> list[str]:
    """Returns the standing phases, then the others in the order of the side, so that rows keep their places."""
    return [*standing, *(phase for phase in side.optional if phase in optional)]


def _row(side: Side, phase: str, record: Record, header: RunHeader, wall_ms: float | None, named: str | None) -> Row:
    ms = number(record, side.phase_key(phase))
    share = ms / wall_ms if ms is not None and wall_ms else None
    note = _why_none(phase, header) if side is LEARNER else ""
    return Row(side.rows[phase], ms, share, note, phase in WAITS, phase == named)


def _why_none(phase: str, header: RunHeader) -> str:
    """Returns why this run spends hardly any time in a phase; '' where it may."""
    if phase in (LearnerPhase.RANK_BARRIER, LearnerPhase.PARAM_SYNC) and header.world_size == 1:
        return "one rank"
    return "CPU" if phase == LearnerPhase.H2D and header.device.startswith("cpu") else ""


def _together(side: Side, phases: Sequence[str], record: Record, wall_ms: float | None) -> Row:
    known = [ms for phase in phases if (ms := number(record, side.phase_key(phase))) is not None]
    total = sum(known) if known else None
    return Row(f"{len(phases)} more", total, total / wall_ms if total is not None and wall_ms else None)
