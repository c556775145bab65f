"""The operations that change a disk, as one object: tests record them, fail them and replay them up to a crash."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path


class Disk:
    """The real disk. Every method raises `OSError`; nothing is durable before the matching fsync returned."""

    def mkdir(self, path: Path) -> None:
        """Makes a directory in an existing one."""
        path.mkdir()

    def write(self, path: Path, blocks: Iterable[bytes | memoryview]) -> None:
        """Makes a file of the concatenated blocks. An existing one is an error: no file is rewritten in place."""
        with path.open("xb") as file:
            for block in blocks:
                file.write(block)

    def fsync(self, path: Path) -> None:
        """Makes the content of a file durable, whichever process wrote it."""
        self._fsync(path, os.O_RDONLY)

    def fsync_dir(self, path: Path) -> None:
        """Makes the names inside a directory durable: new, renamed and removed ones."""
        try:
            self._fsync(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            # Some network and FUSE filesystems have no fsync for directories: nothing more can be done.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise

    def rename(self, old: Path, new: Path) -> None:
        """Renames atomically; a file at `new` is replaced, a directory with content there is an error."""
        old.rename(new)

    def remove(self, path: Path) -> None:
        """Removes a file, or a directory with all its content. Symbolic links are removed, never followed."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    def _fsync(self, path: Path, flags: int) -> None:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
