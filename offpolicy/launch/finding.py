"""One fact about an installation or a machine, how it bears on training, and what to change."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Level(StrEnum):
    """How a fact bears on training."""

    OK = "ok"
    NOTE = "note"  # something else than training may be missing
    SLOW = "slow"  # training works, and takes longer than it must
    BAD = "bad"  # some runs fail, or their results may be wrong
    BROKEN = "broken"  # no training can work


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact. `fix` says what to change where the level is not `ok`."""

    section: str
    name: str
    value: str
    level: Level = Level.OK
    fix: str = ""

    def to_mapping(self) -> dict[str, str]:
        """Returns the finding as JSON has it."""
        return {key: str(value) for key, value in asdict(self).items()}
