"""Topology `appo`: one or more learner ranks learn from whole rollouts, each from collectors of its own.

The wiring is that of `multi_gpu`: what differs is where batches come from, which the algorithm decides (`feeds.py`).
"""

from __future__ import annotations

from .multi_gpu import learner_main

__all__ = ["learner_main"]
