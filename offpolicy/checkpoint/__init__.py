"""Checkpoints that survive kills, full disks and bit flips, and that can execute nothing.

A checkpoint is a directory `step-<12 digits>` of safetensors, JSON and raw float32 files under one manifest.
"""

from offpolicy.checkpoint.formats import write_json, write_rows, write_tensors
from offpolicy.checkpoint.manifest import Checkpoint
from offpolicy.checkpoint.replay_rows import read_replay
from offpolicy.checkpoint.store import CHECKPOINTS, CheckpointStore, Draft
from offpolicy.files import Disk

__all__ = [
    "CHECKPOINTS",
    "Checkpoint",
    "CheckpointStore",
    "Disk",
    "Draft",
    "read_replay",
    "write_json",
    "write_rows",
    "write_tensors",
]
