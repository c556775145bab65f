"""The panel's lines on several learner ranks and on the packing thread."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from offpolicy.logger.console import UNKNOWN, count, fixed, milliseconds, number, percent
from offpolicy.logger.metrics import RANK_STATISTICS, prefetch_key, rank_key, series_key
from offpolicy.logger.record import Record, RunHeader
from offpolicy.timing.phases import LearnerPhase, PackerPhase

MAX_RANK_LINES = 8
RANK_TIMES: Mapping[str, str] = {
    LearnerPhase.TRAIN: "train",
    LearnerPhase.COLLECTOR_WAIT: "collector wait",
    LearnerPhase.RANK_BARRIER: "barrier",
    LearnerPhase.PARAM_SYNC: "sync",
    "iter": "wall",
    "late": "late",
}


def rank_lines(record: Record, header: RunHeader, *, is_broad: bool) -> list[Text]:
    """Returns a line on several ranks together; where there is room, one for each, and one on the packing thread."""
    lines = [_ranks_line(record, header)] if header.world_size > 1 else []
    if is_broad:
        lines += _lines_of_each(record, header) + _packer_lines(record)
    return lines


def _ranks_line(record: Record, header: RunHeader) -> Text:
    """Returns the waits of the ranks for each other, and which one is late."""
    waits = "/".join(fixed(number(record, rank_key(LearnerPhase.RANK_BARRIER, name)), 1) for name in RANK_STATISTICS)
    working, late, late_ms = (number(record, f"rank/{name}") for name in ("num", "straggler", "late_ms"))
    of_all = "" if working in (None, header.world_size) else f"{count(working)} of "
    who = UNKNOWN if late_ms is None else "none is late"
    if late is not None:
        who = f"rank {count(late)} late {fixed(late_ms, 1)} ms ({number(record, 'rank/late_share') or 0.0:.0%})"
    line = f"{of_all}{header.world_size}: barrier {waits} ms ({'/'.join(RANK_STATISTICS)}), {who}"
    return Text.assemble(("ranks ", "cyan"), line)


def _lines_of_each(record: Record, header: RunHeader) -> list[Text]:
    """Returns a line for each of the first ranks with an iteration in the window."""
    shown = [rank for rank in range(header.world_size) if series_key(rank, "iter") in record][:MAX_RANK_LINES]
    lines: list[Text] = []
    for rank in shown:
        times = [
            f"{name} {milliseconds(number(record, series_key(rank, phase)))}" for phase, name in RANK_TIMES.items()
        ]
        cpu = percent(number(record, f"rank/{rank}/cpu_pct"), 100.0)
        lines.append(Text.assemble((f"rank {rank} ", "cyan"), "  ".join([*times, f"cpu {cpu}"])))
    return lines


def _packer_lines(record: Record) -> list[Text]:
    """Returns a line with the packer's phases; none where nothing is packed."""
    if not number(record, prefetch_key(PackerPhase.PACK)):
        return []
    times = [f"{phase.replace('_', ' ')} {milliseconds(number(record, prefetch_key(phase)))}" for phase in PackerPhase]
    return [Text.assemble(("packer ", "cyan"), "   ".join(times) + " ms per batch")]
