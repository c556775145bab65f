"""What a checkpoint holds besides tensors: its JSON files as dataclasses, and the rows of the replay.

`state.json` holds what all ranks share, `rank-<k>.json` the random streams of a learner rank, `collector-<i>.json` the
counters and random streams of a collector.

The rows [first, end) of each ring are in segments, files `replay-<ring>-<index of its first row>.f32` of consecutive
rows. The oldest may be older than `first`: the ring has recycled them since. So a checkpoint writes only the rows that
are new since the last one, and links the other segments. A row is a slot of the ring: it holds its observation only,
and `ahead-<ring>.f32` has those behind the last row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from offpolicy.checkpoint.manifest import ROWS, Checkpoint
from offpolicy.config.parsing import plain
from offpolicy.config.schema import RunConfig, plugins_of
from offpolicy.types import Float32, SpaceSpec

PLUGINS_KEY = "plug-ins"  # of the fingerprint, with their versions: another version is said, not refused
OWN_OPTIONS = {  # of algorithms, which decide the shape or the meaning of what is learnt
    "hora": ("stage", "latent_dim", "encoder_dims"),
    "flashsac": ("actor_width", "critic_width", "num_blocks", "num_bins", "value_max", "scale_reward"),
}
_SEGMENT = re.compile(r"replay-([0-9]+)-([0-9]{15})\.f32")


@dataclass(frozen=True)
class SharedState:
    """`state.json`."""

    numbers: dict[str, int | float]  # of the learner
    env_steps: int
    num_collectors: int  # of all hosts
    num_ranks: int
    start: Sequence[int]  # env steps and updates at which learning began
    replay_first: Sequence[int]  # by ring of this host: the oldest row
    replay_end: Sequence[int]
    replay_written: Sequence[int]  # transitions that the ring was ever given
    last_eval_step: int
    teacher: str | None
    fingerprint: dict[str, Any]
    has_replay: bool


@dataclass(frozen=True)
class RankStreams:
    """`rank-<k>.json`."""

    source: list[Any]  # what must be equal for the state of one batch source to fit another
    fresh_from: list[int]  # first row of each ring that the normaliser has not seen
    sampler: dict[str, Any]  # state of the batch source
    updates: str  # state of the generator of the updates, in hexadecimal digits
    setting: Sequence[Any] | None  # threads and mode that a trial has chosen
    kernels: str  # that made the updates


@dataclass(frozen=True)
class CollectorNumbers:
    """`collector-<i>.json`."""

    env_steps: int
    vector_steps: int
    policy_steps: int
    policy_lag_sum: float
    uniform: dict[str, Any]  # state of the generator of the first actions
    env: dict[str, Any] | None  # state of the environments; None: it could not be saved
    why_not_exact: str | None


class Segment(NamedTuple):
    """A file with the rows [first, end) of a ring."""

    file_name: str
    first: int
    end: int


class SavedRows(NamedTuple):
    """The rows of a ring in a checkpoint: `blocks` [n, width] in order, the first one's first row of index `first`."""

    first: int
    blocks: Sequence[Float32]
    ahead: Float32  # [m, width] what the last rows refer to
    num_written: int  # transitions that the ring was ever given


def segment_name(ring: int, first: int) -> str:
    """Returns the name, without suffix, of the segment of a ring that begins with row `first`."""
    return f"replay-{ring}-{first:015d}"


def ahead_name(ring: int) -> str:
    """Returns the name, without suffix, of the file of what the last rows of a ring refer to."""
    return f"ahead-{ring}"


def segments_of(checkpoint: Checkpoint, ring: int, width: int) -> list[Segment]:
    """Returns the segments of a ring [rows, width], oldest first. Reads no file."""
    found = []
    for name, file in checkpoint.files.items():
        match = _SEGMENT.fullmatch(name)
        if match and int(match[1]) == ring:
            first = int(match[2])
            found.append(Segment(name, first, first + file.size // (4 * width)))
    return sorted(found, key=lambda segment: segment.first)


def read_replay(checkpoint: Checkpoint, ring: int, width: int) -> SavedRows | None:
    """Returns the rows of a ring [rows, width], mapped; None if none were saved. Raises `CheckpointError`."""
    segments = segments_of(checkpoint, ring, width)
    if not segments:
        return None
    state, ahead = checkpoint.read(SharedState, "state"), ahead_name(ring)
    first = state.replay_first[ring]
    blocks = [
        checkpoint.rows(segment.file_name.removesuffix(ROWS), width)[max(first - segment.first, 0) :]
        for segment in segments
    ]
    behind = checkpoint.rows(ahead, width) if checkpoint.has(ahead) else np.empty((0, width), np.float32)
    return SavedRows(first, blocks, behind, state.replay_written[ring])


def fingerprint(cfg: RunConfig, spec: SpaceSpec) -> dict[str, Any]:
    """Returns, as JSON data, what must be equal for a checkpoint to fit a configuration."""
    algo = cfg.algo
    own = {"rollout.length": cfg.rollout.length, "algo.normalize_value": algo.normalize_value}
    rollouts = own if algo.learns_from_rollouts else {}
    own_names = {f"algo.{name}": plain(getattr(algo, name)) for name in OWN_OPTIONS.get(algo.name, ())}
    used = [plugin.label for plugin in plugins_of(cfg)]
    return {
        **({PLUGINS_KEY: used} if used else {}),
        **rollouts,
        **own_names,
        "algo.name": algo.name,
        "algo.hidden_dims": list(algo.hidden_dims),
        "algo.activation": algo.activation,
        "algo.critic_layer_norm": algo.critic_layer_norm,
        "algo.normalize_obs": algo.normalize_obs,
        "algo.n_step": algo.n_step,
        "algo.gamma": algo.gamma,
        "env observation size": spec.obs_dim,
        "env action size": spec.num_actions or list(spec.nvec) or spec.action_dim,
    }
