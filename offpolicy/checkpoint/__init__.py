"""Checkpoints that survive kills, full disks and bit flips, and that can execute nothing.

A checkpoint is a directory `step-<12 digits>` of safetensors, JSON and raw float32 files under one manifest.
"""

from offpolicy.checkpoint.best import BestPolicy, BestStore, read_best
from offpolicy.checkpoint.content import CollectorNumbers, RankStreams, SharedState, check_content, state_fields
from offpolicy.checkpoint.draft import Draft
from offpolicy.checkpoint.formats import write_json, write_rows, write_tensors
from offpolicy.checkpoint.manifest import Checkpoint
from offpolicy.checkpoint.replay_rows import read_replay
from offpolicy.checkpoint.store import CHECKPOINTS, CheckpointStore, checkpoint_path, run_store
from offpolicy.files import Disk

__all__ = [
    "CHECKPOINTS",
    "BestPolicy",
    "BestStore",
    "Checkpoint",
    "CheckpointStore",
    "CollectorNumbers",
    "Disk",
    "Draft",
    "RankStreams",
    "SharedState",
    "check_content",
    "checkpoint_path",
    "read_best",
    "read_replay",
    "run_store",
    "state_fields",
    "write_json",
    "write_rows",
    "write_tensors",
]
