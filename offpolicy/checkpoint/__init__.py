"""Checkpoints that survive kills, full disks and bit flips, and that can execute nothing.

A checkpoint is a directory `step-<12 digits>` of safetensors, JSON and raw float32 files under one manifest.
"""

from offpolicy.checkpoint.best import BestPolicy, BestStore, read_best
from offpolicy.checkpoint.content import CollectorNumbers, RankStreams, SharedState, read_replay
from offpolicy.checkpoint.manifest import Array, Checkpoint, make_part, write_json, write_tensors
from offpolicy.checkpoint.store import CHECKPOINTS, CheckpointStore, Draft, checkpoint_path, run_store
from offpolicy.files import Disk

__all__ = [
    "CHECKPOINTS",
    "Array",
    "BestPolicy",
    "BestStore",
    "Checkpoint",
    "CheckpointStore",
    "CollectorNumbers",
    "Disk",
    "Draft",
    "RankStreams",
    "SharedState",
    "checkpoint_path",
    "make_part",
    "read_best",
    "read_replay",
    "run_store",
    "write_json",
    "write_tensors",
]
