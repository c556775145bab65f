"""The group of learner ranks."""

from __future__ import annotations


class SoloWorld:
    """A world of one rank: every collective is the identity."""

    rank = 0
    size = 1

    def any(self, flag: bool) -> bool:
        """The flag itself."""
        return flag
