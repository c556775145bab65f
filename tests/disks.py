"""A disk whose operations a test sees, and saves of which every file carries the tag of its save."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from offpolicy.checkpoint import Checkpoint, CheckpointStore, Disk

OLD_ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)  # written by the first save, linked by all others


class WatchedDisk(Disk):
    """Calls `watch` before every operation, and waits for no hardware."""

    def watch(self, kind: str, path: Path, new: Path | None = None, content: bytes = b"") -> None:
        """Of a `link` or `rename` to `new`, or of a `write` of `content`."""

    def mkdir(self, path: Path) -> None:
        self.watch("mkdir", path)
        super().mkdir(path)

    def write(self, path: Path, blocks: Iterable[bytes | memoryview]) -> None:
        content = b"".join(blocks)
        self.watch("write", path, content=content)
        super().write(path, [content])

    def link(self, old: Path, new: Path) -> None:
        self.watch("link", old, new)
        super().link(old, new)

    def fsync(self, path: Path) -> None:
        self.watch("fsync", path)

    def fsync_dir(self, path: Path) -> None:
        self.watch("fsync_dir", path)

    def rename(self, old: Path, new: Path) -> None:
        self.watch("rename", old, new)
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self.watch("remove", path)
        super().remove(path)


def save_tagged(store: CheckpointStore, env_steps: int, tag: int, size: int = 1) -> None:
    """A state of which every file but one, which all saves take over, carries the tag; of about 20 * `size` bytes."""
    base = store.newest_valid()
    with store.begin(env_steps) as draft:
        if base is None:
            draft.add_rows("old", [OLD_ROWS])
        else:
            draft.add_link("old.f32", base, "old.f32")
        draft.add_tensors("model", {"weight": np.full(size, tag, np.float32)})
        draft.add_json("state", tag)
        draft.add_rows("replay", [np.full((size, 4), tag, np.float32)])


def tag_of(checkpoint: Checkpoint | None) -> int:
    """The tag of the save that this state is, 0 for none. A mixture of saves fails."""
    if checkpoint is None:
        return 0
    tags = {checkpoint.json("state"), *checkpoint.tensors("model")["weight"], *checkpoint.rows("replay", 4).flat}
    assert len(tags) == 1, f"mixture of the saves {tags}"
    np.testing.assert_array_equal(checkpoint.rows("old", 4), OLD_ROWS)
    return int(checkpoint.json("state"))
