"""How long a checkpoint of 1 M rows of HalfCheetah stops the loop, and how many bytes it writes.

The loop waits while the learner's tensors and the first new rows are copied; the rest is written beside training. The
collector's part, which it writes to the page cache meanwhile, is measured by the part `collector`.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.parts import halfcheetah
from benchmarks.parts.measurement import Measurement
from offpolicy.checkpoint import CheckpointStore, Disk
from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_layout import OFFSET_SHIFT
from offpolicy.replay.row_saver import RowSaver
from offpolicy.timing.clock import MonotonicClock

CAPACITY = 1_000_000  # rows
NEW_ROWS = (50_000, CAPACITY)  # since the last checkpoint: of `checkpoint.every`, and all of them
MOST_MS, MOST_BYTES = 50.0, 1.1
BUILD = Path("build")


class CountingDisk(Disk):
    """The disk, with a count of the bytes written."""

    num_bytes = 0

    def write(self, path: Path, blocks: Iterable[bytes | memoryview]) -> None:
        super().write(path, self._counted(blocks))

    def _counted(self, blocks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for block in blocks:
            self.num_bytes += len(block) if isinstance(block, bytes) else block.nbytes
            yield block


def measure(rounds: int) -> Iterator[Measurement]:
    """Milliseconds that the loop waits, and bytes written per byte that is new, tensors included."""
    torch.set_num_threads(1)
    # On the disk of the checkout, where runs are, and ignored by git: an interrupted call leaves it behind.
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as root:
        for new_rows in NEW_ROWS:
            yield from _saves(Path(root) / str(new_rows), new_rows, rounds)


def _saves(root: Path, new_rows: int, rounds: int) -> Iterator[Measurement]:
    learner, layout = halfcheetah.learner("sac"), halfcheetah.LAYOUT
    nbytes, width = ReplayRing.nbytes_for(CAPACITY, layout, num_envs=1, n_step=1), layout.slot_width
    ring = ReplayRing(SharedBlock.create("bench-saves", nbytes).buffer, layout, CAPACITY, num_envs=1)
    disk, saver = CountingDisk(), RowSaver([ring])
    root.mkdir()
    store, clock = CheckpointStore(root / "checkpoints", disk=disk), MonotonicClock()
    waited_ms, written = [], []
    rng = np.random.default_rng(1)
    tails = rng.standard_normal((layout.action_dim + 3,), dtype=np.float32)[None].repeat(50_000, axis=0)
    tails.view(np.uint32)[:, -1] = 1 << OFFSET_SHIFT
    ring.write(tails[:0], rng.standard_normal((1, layout.obs_dim), dtype=np.float32))
    gc.freeze()  # as in a learner's process
    for number in range(1, 3 * rounds + 2):
        for _ in range((CAPACITY if number == 1 else new_rows) // len(tails)):
            ring.write(tails, tails[:1, : layout.obs_dim].repeat(3, axis=1)[:, : layout.obs_dim])
        began_ns, disk.num_bytes = clock.now_ns(), 0
        captured, state = saver.capture(), learner.state()
        waited_ms.append((clock.now_ns() - began_ns) / 1e6)
        tensors = {name: tensor.numpy() for name, tensor in state.tensors.items()}
        with store.begin(number) as draft:
            draft.add_tensors("learner", tensors)
            numbers = {"replay_first": [ring.oldest], "replay_end": [ring.committed]}
            draft.add_json("state", numbers | {"has_replay": True})
            captured.write(draft)
        saver.continue_from(draft.saved)
        new_bytes = 4 * width * new_rows + sum(tensor.nbytes for tensor in tensors.values())
        written.append(disk.num_bytes / new_bytes)
    name = f"{CAPACITY:,} rows, {new_rows:,} of them new"
    yield Measurement("saves", f"the loop waits, {name}", "ms", waited_ms[1:], MOST_MS)
    yield Measurement("saves", f"bytes written per new one, {name}", "", written[1:], MOST_BYTES)
