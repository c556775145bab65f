"""A hook for `collect.hook`."""

from __future__ import annotations


def count(episode: object) -> None:
    """Takes an episode and does nothing with it."""
