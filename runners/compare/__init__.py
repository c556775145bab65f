"""`offpolicy compare`: runs side by side, phase by phase and curve by curve, with a verdict per row."""

from __future__ import annotations

from .command import Request, compare

__all__ = ["Request", "compare"]
