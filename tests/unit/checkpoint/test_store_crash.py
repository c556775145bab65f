"""Power loss at every instant of a save, by simulation: what no real kill can show.

One script of saves runs on a disk that records its operations. A model of the disk then replays them up to every
instant and enumerates what a power loss may legally leave: of the names changed since the last fsync of their
directory any subset, of a file not fsynced all, half or nothing. The loader runs on each such disk. It must find a
fully saved state, the last acknowledged one or a newer one, and must meet nothing that looks like a checkpoint and is
none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from offpolicy.checkpoint import CheckpointStore, Disk
from offpolicy.errors import CheckpointError
from tests.disks import WatchedDisk, save_tagged, tag_of

Tree = dict[str, bytes | None]  # path -> content of a file, None for a directory

# The saves of the script: one after the other, one step twice, and enough of them for retention.
STEPS = (100, 200, 200, 300)


@dataclass(frozen=True)
class Op:
    """One operation; `save` counts the saves acknowledged before it."""

    kind: str
    path: str
    new: str = ""
    content: bytes = b""
    num_acknowledged: int = 0


class RecordingDisk(WatchedDisk):
    """Writes down what it does."""

    def __init__(self, base: Path) -> None:
        self.ops: list[Op] = []
        self.num_acknowledged = 0
        self._base = base

    def watch(self, kind: str, path: Path, new: Path | None = None, content: bytes = b"") -> None:
        target = "" if new is None else str(new.relative_to(self._base))
        self.ops.append(Op(kind, str(path.relative_to(self._base)), target, content, self.num_acknowledged))


def record(base: Path) -> list[Op]:
    """Run the script; the operations, with a last one that marks the acknowledgement of the last save."""
    disk = RecordingDisk(base)
    store = CheckpointStore(base / "checkpoints", 2, disk)
    for tag, env_steps in enumerate(STEPS, start=1):
        save_tagged(store, env_steps, tag)
        disk.num_acknowledged = tag
    assert store.warnings == []
    return [*disk.ops, Op("end", ".", num_acknowledged=len(STEPS))]


@dataclass
class File:
    content: bytes
    is_durable: bool = False


@dataclass
class Directory:
    """Durable names, and the changes to them since the last fsync of the directory, oldest first."""

    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[dict[str, Node | None]] = field(default_factory=list)

    def names(self, kept: Iterable[dict[str, Node | None]]) -> dict[str, Node]:
        """The names when of the pending changes only these reached the disk."""
        names: dict[str, Node | None] = {**self.durable}
        for change in kept:
            names.update(change)
        return {name: node for name, node in names.items() if node is not None}


Node = File | Directory


def replay(ops: Iterable[Op]) -> Directory:
    """The disk after these operations."""
    run = Directory()
    for op in ops:
        parent, name = find(run, str(Path(op.path).parent)), Path(op.path).name
        assert isinstance(parent, Directory)
        if op.kind == "mkdir":
            parent.pending.append({name: Directory()})
        elif op.kind == "write":
            parent.pending.append({name: File(op.content)})
        elif op.kind == "link":
            target = find(run, str(Path(op.new).parent))
            assert isinstance(target, Directory)
            target.pending.append({Path(op.new).name: find(run, op.path)})
        elif op.kind == "rename":
            assert Path(op.new).parent == Path(op.path).parent
            parent.pending.append({name: None, Path(op.new).name: find(run, op.path)})
        elif op.kind == "remove":
            remove(parent, name)
        else:
            fsync(find(run, op.path))
    return run


def find(run: Directory, path: str) -> Node:
    """The node that a running process sees under this path."""
    node: Node = run
    for part in Path(path).parts:
        assert isinstance(node, Directory)
        node = node.names(node.pending)[part]
    return node


def remove(parent: Directory, name: str) -> None:
    """Remove the content first, as any removal of a directory must."""
    node = parent.names(parent.pending)[name]
    if isinstance(node, Directory):
        for child in node.names(node.pending):
            remove(node, child)
    parent.pending.append({name: None})


def fsync(node: Node) -> None:
    if isinstance(node, File):
        node.is_durable = True
    else:
        node.durable, node.pending = node.names(node.pending), []


@dataclass(frozen=True)
class Loss:
    """Which un-fsynced things below `checkpoints/` a power loss takes: all, none, or the one of this index."""

    is_total: bool = False
    index: int = -1
    keeps_half: bool = False  # of the un-fsynced files it takes


def crashes(run: Directory) -> Iterator[Tree]:
    """The disks that a power loss may leave: every subset of the changed names, times the losses below them."""
    for kept_in_run in subsets(run.pending):
        root = run.names(kept_in_run).get("checkpoints")
        if not isinstance(root, Directory):
            yield {}
            continue
        for kept in subsets(root.pending):
            nodes = root.names(kept)
            for loss in losses(nodes):
                yield {"checkpoints": None, **flatten(nodes, loss)}


def subsets(changes: list[dict[str, Node | None]]) -> Iterator[list[dict[str, Node | None]]]:
    assert len(changes) <= 8, "too many to enumerate"
    for flags in itertools.product((False, True), repeat=len(changes)):
        yield [change for change, is_kept in zip(changes, flags, strict=True) if is_kept]


def losses(nodes: dict[str, Node]) -> Iterator[Loss]:
    yield from (Loss(), Loss(is_total=True), Loss(is_total=True, keeps_half=True))
    for index, half in itertools.product(range(len(volatile(nodes))), (False, True)):
        yield Loss(index=index, keeps_half=half)


def volatile(nodes: dict[str, Node]) -> list[int]:
    """Identities of what may be lost below the names themselves: contents of files, changed names of directories."""
    lost: list[int] = []
    for node in nodes.values():
        if isinstance(node, File):
            lost += [] if node.is_durable else [id(node)]
        else:
            lost += [id(change) for change in node.pending] + volatile(node.names(node.pending))
    return lost


def flatten(nodes: dict[str, Node], loss: Loss) -> Tree:
    """The tree below `checkpoints/` after the loss."""
    things = volatile(nodes)
    lost = set(things) if loss.is_total else {things[loss.index]} if loss.index >= 0 else set()
    tree: Tree = {}
    for name, node in nodes.items():
        path = f"checkpoints/{name}"
        if isinstance(node, File):
            tree[path] = surviving(node, lost, loss.keeps_half)
            continue
        tree[path] = None
        # A loss of halves keeps the names: it is about contents.
        kept = [change for change in node.pending if loss.keeps_half or id(change) not in lost]
        for child, file in node.names(kept).items():
            assert isinstance(file, File)
            tree[f"{path}/{child}"] = surviving(file, lost, loss.keeps_half)
    return tree


def surviving(file: File, lost: set[int], keeps_half: bool) -> bytes:
    return file.content[: len(file.content) // 2 if keeps_half else 0] if id(file) in lost else file.content


@contextmanager
def disk_of(tree: Tree, base: Path, number: int) -> Iterator[Path]:
    """The tree as a real directory."""
    root = base / str(number)
    root.mkdir()
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
    yield root / "checkpoints"
    Disk().remove(root)


def simulate(base: Path) -> int:
    """Try every crash of the script; the number of distinct ones. Raises `AssertionError` at the first bad one."""
    (base / "script").mkdir(parents=True)
    ops = record(base / "script")
    seen: set[tuple[int, frozenset[tuple[str, bytes | None]]]] = set()
    for instant, op in enumerate(ops):
        for tree in crashes(replay(ops[:instant])):
            key = op.num_acknowledged, frozenset(tree.items())
            if key in seen:
                continue
            seen.add(key)
            with disk_of(tree, base, len(seen)) as root:
                store = CheckpointStore(root, 2, WatchedDisk())
                check(store, root, op.num_acknowledged, f"crash before {op.kind} {op.path}")
                check_recovery(CheckpointStore(root, 2, WatchedDisk()), root, op.num_acknowledged)
    return len(seen)


def check(store: CheckpointStore, root: Path, num_acknowledged: int, where: str) -> None:
    newest = store.newest_valid()
    tag = tag_of(newest)
    assert newest is None or newest.env_steps == STEPS[tag - 1]
    assert num_acknowledged <= tag <= num_acknowledged + 1, f"{where}: loaded save {tag} of {num_acknowledged}"
    assert store.rejected == [], f"{where}: {store.rejected}"
    for path in root.glob("step-*"):
        try:
            store.at(int(path.name[-12:]))
        except CheckpointError as error:
            raise AssertionError(f"{where}: a name of a checkpoint without one: {error}") from error


def check_recovery(store: CheckpointStore, root: Path, num_acknowledged: int) -> None:
    """The next save works on what the crash left, and leaves no rest of it."""
    tag = min(num_acknowledged + 1, len(STEPS))
    save_tagged(store, STEPS[tag - 1], tag)
    assert tag_of(store.newest_valid()) == tag
    assert store.warnings == []
    assert not [path.name for path in root.iterdir() if path.name.startswith(".")]


@pytest.mark.promise("no-broken-checkpoint")
def test_every_power_loss_leaves_the_last_acknowledged_save_or_a_newer_one(tmp_path: Path) -> None:
    assert simulate(tmp_path) > 300
