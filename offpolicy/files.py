"""Files that a full disk, a kill or a signal never leaves half written."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from offpolicy import fault
from offpolicy.errors import ConfigError

# What a filesystem without hard links answers, and one that has too many names of a file already.
NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP)
_TEMPORARY = re.compile(r"\..+\.([0-9]+)\.tmp")  # of `atomic_file`, with the pid of the writer
UPDATES = "train/n_updates"  # of a record
Line = Mapping[str, float | str | None]  # of a file of JSON lines


@contextlib.contextmanager
def atomic_file(path: Path, *, durable: bool) -> Iterator[IO[bytes]]:
    """Yields a file that replaces `path` when the block ends, and is on the disk then if it is `durable`.

    After an error `path` is as it was. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # another process may write the same path
    try:
        with temporary.open("wb") as file:
            fault.hit("file.write")
            yield file
            if durable:
                fault.hit("file.fsync")
                file.flush()
                os.fsync(file.fileno())
        fault.hit("file.rename")
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        Disk().fsync_dir(path.parent)


def remove_temporaries(directory: Path) -> None:
    """Removes what writers that were killed inside `atomic_file` have left in a directory; never raises."""
    for path in directory.glob(".*.tmp"):
        named = _TEMPORARY.fullmatch(path.name)
        if named is not None and not Path(f"/proc/{named[1]}").exists():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def atomic_write(path: Path, content: bytes | str, *, durable: bool) -> None:
    """Replaces the content of `path`, text in UTF-8: a reader sees the old file or the new one. Raises OSError."""
    with atomic_file(path, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def output_path(path: Path) -> Iterator[Path]:
    """Yields a path to write in place of a file that the user has named: a new file that replaces it at the end.

    It ends as `path` does. A link is followed; a pipe or a device is yielded itself. Raises OSError.
    """
    place = path.resolve()
    if place.exists() and not place.is_file():
        yield path
        return
    new = place.with_name(f".{place.stem}.{os.getpid()}.tmp{place.suffix}")
    try:
        yield new
        new.replace(place)
    finally:
        new.unlink(missing_ok=True)


def write_output(option: str, path: Path, content: bytes | str) -> None:
    """Writes a file that the user has named with `option`, see `output_path`; `-` is stdout. Raises `ConfigError`."""
    data = content.encode() if isinstance(content, str) else content
    if str(path) == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return
    try:
        with output_path(path) as new:
            new.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be written: {error.strerror}; write it elsewhere") from None


class AppendFile:
    """An unbuffered file with one writer: a piece is in the file when `write` returns, or not at all."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, piece: bytes, instead: bytes = b"") -> None:
        """Writes `piece` in one call, in place of the end of the file, `instead`. Raises OSError: all is as it was."""
        fault.hit("record.write")
        begin = os.fstat(self._descriptor).st_size - len(instead)
        written = os.pwrite(self._descriptor, piece, begin)
        if written < len(piece):
            os.pwrite(self._descriptor, instead, begin)  # takes no room: the blocks are there
            os.ftruncate(self._descriptor, begin + len(instead))
            raise OSError(f"only {written} of {len(piece)} bytes could be written")

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class JsonlFile(AppendFile):
    """An append-only file of JSON lines, which drops a torn last line when it is opened.

    Records beyond `resume_step` or `resume_updates`, which a resumed run makes again, move to `*.superseded.jsonl`.
    """

    def __init__(self, path: Path, resume_step: int | None, resume_updates: int | None = None) -> None:
        if path.is_file():
            _mend(path, *(math.inf if last is None else last for last in (resume_step, resume_updates)))
        super().__init__(path)

    def append(self, mapping: Line) -> None:
        """Writes one line, whole or not at all. Raises OSError."""
        self.write(_line(mapping))


class UniqueJsonlFile(JsonlFile):
    """A file of JSON lines with one line per env step: one of the same env step as the last one is merged with it.

    Of two values the new one stays, but after a resume that has done no update yet the old one.
    """

    def __init__(self, path: Path, resume_step: int | None, resume_updates: int | None = None) -> None:
        super().__init__(path, resume_step, resume_updates)
        content = path.read_bytes() if path.is_file() else b""
        self._last_line = content[content.rfind(b"\n", 0, -1) + 1 :]
        self._last: Line = json.loads(self._last_line or b"{}")
        self._is_of_before = True  # the last line is of another process

    def append(self, mapping: Line) -> None:
        """Writes one line, whole or not at all, after those of other env steps. Raises OSError; the last one stays."""
        before, is_repeated = b"", False
        if self._last.get("env_steps") == mapping.get("env_steps", -1):
            before = self._last_line
            is_repeated = self._is_of_before and self._last.get(UPDATES) == mapping.get(UPDATES)
            mapping = {**mapping, **self._last} if is_repeated else {**self._last, **mapping}
        line = _line(mapping, len(before))
        self.write(line, before)
        self._last_line, self._last, self._is_of_before = line, mapping, is_repeated


def _line(mapping: Line, length: int = 0) -> bytes:
    """Returns a line of at least so many bytes: over a longer one, nothing of that one is left."""
    return json.dumps(mapping, allow_nan=False).encode().ljust(length - 1) + b"\n"


def _mend(path: Path, last_step: float, last_updates: float) -> None:
    """Keeps the whole lines up to `last_step` and `last_updates`; moves later ones out and drops torn ones."""
    lines, kept, superseded = path.read_bytes().split(b"\n"), list[bytes](), list[bytes]()
    for line in lines:
        try:
            record: Any = json.loads(line)  # Any: whatever the file holds
            is_kept = float(record["env_steps"]) <= last_step and float(record.get(UPDATES, 0.0)) <= last_updates
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
        (kept if is_kept else superseded).append(line + b"\n")
    if superseded:
        fault.hit("record.mend")
        with path.with_name(f"{path.stem}.superseded{path.suffix}").open("a+b") as file:
            file.seek(0)
            if not file.read().endswith(b"".join(superseded)):  # as after a start whose next write was refused
                file.write(b"".join(superseded))
                file.flush()
                os.fsync(file.fileno())
    if b"".join(kept) != b"\n".join(lines):
        atomic_write(path, b"".join(kept), durable=True)


class Disk:
    """The operations that change a disk; nothing is durable before its fsync has returned. All raise OSError."""

    def mkdir(self, path: Path) -> None:
        """Makes a directory in an existing one."""
        fault.hit("disk.mkdir")
        path.mkdir()

    def write(self, path: Path, blocks: Iterable[bytes | memoryview]) -> None:
        """Makes a file of the concatenated blocks. An existing one is an error: no file is rewritten in place."""
        with path.open("xb") as file:
            for block in blocks:
                fault.hit("disk.write")
                file.write(block)

    def link(self, old: Path, new: Path) -> None:
        """Gives the file at `old` a second name; where the filesystem has no hard links, `new` is a durable copy."""
        fault.hit("disk.link")
        try:
            os.link(old, new, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            shutil.copyfile(old, new)
            self.fsync(new)

    def fsync(self, path: Path) -> None:
        """Makes the content of a file durable, whichever process wrote it."""
        fault.hit("disk.fsync")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def fsync_dir(self, path: Path) -> None:
        """Makes the names inside a directory durable: new, renamed and removed ones."""
        try:
            self.fsync(path)
        except OSError as error:
            # Some network and FUSE filesystems have no fsync for directories: nothing more can be done.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise

    def rename(self, old: Path, new: Path) -> None:
        """Renames atomically; a file at `new` is replaced, a directory with content there is an error."""
        fault.hit("disk.rename")
        old.rename(new)

    def remove(self, path: Path) -> None:
        """Removes a file, or a directory with all its content. Symbolic links are removed, never followed."""
        fault.hit("disk.remove")
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
