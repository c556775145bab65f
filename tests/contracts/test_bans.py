"""Bans of pyproject.toml that ruff cannot see are searched for in the syntax tree; others of whole folders, too."""

from __future__ import annotations

import ast
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


# Ruff resolves names, not objects: `context.Queue()` and `event.synchronize()` are only seen in the syntax tree.
KILLED_BY_A_PEER = {
    "Lock", "RLock", "Event", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "Queue", "SimpleQueue",
    "JoinableQueue", "Manager",
}  # fmt: skip
SAFE_OWNERS = {"threading", "queue", "event_pb2"}  # event_pb2: a TensorBoard record
DEVICE_CLOCKS = {"synchronize", "elapsed_time"}


def hidden_bans(source: str) -> list[str]:
    """Calls of multiprocessing primitives through a context, and of device synchronisation through an object."""
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    attributes = [call for call in calls if isinstance(call, ast.Attribute)]
    return [
        ast.unparse(call)
        for call in attributes
        if call.attr in DEVICE_CLOCKS or (call.attr in KILLED_BY_A_PEER and ast.unparse(call.value) not in SAFE_OWNERS)
    ]


def test_no_source_file_hides_a_ban_behind_an_object() -> None:
    files = [*(REPOSITORY / "offpolicy").rglob("*.py"), *(REPOSITORY / "runners").rglob("*.py")]
    outside = [path for path in files if (REPOSITORY / "offpolicy/timing") not in path.parents]
    assert len(outside) > 10
    assert {path.name: bans for path in outside if (bans := hidden_bans(path.read_text()))} == {}


def consoles(source: str) -> list[str]:
    """The consoles that a file makes itself."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [ast.unparse(call) for call in calls if ast.unparse(call.func).split(".")[-1] == "Console"]


def test_commands_print_to_the_console_on_which_a_path_is_no_markup() -> None:
    """One of rich's own takes `[x]` in a path or label for a style and `:x:` for an emoji."""
    files = [path for folder in ("commands", "api") for path in (REPOSITORY / "offpolicy" / folder).glob("*.py")]
    found = {path.name: own for path in files if (own := consoles(path.read_text()))}
    assert found == {"export.py": ["Console(stderr=True)"], "play.py": ["Console(stderr=True)"]}


def test_no_file_holds_the_marks_of_an_unfinished_merge() -> None:
    texts = [path for folder in ("docs", "conf", "tests") for path in (REPOSITORY / folder).rglob("*")]
    texts += list(REPOSITORY.glob("*.md"))
    marks = ("<" * 7 + " ", ">" * 7 + " ")
    suffixes = {".md", ".py", ".yaml", ".json"}
    marked = [path for path in texts if path.suffix in suffixes and _begins_a_line(path.read_text(), marks)]
    assert marked == []


def _begins_a_line(text: str, marks: tuple[str, ...]) -> bool:
    return any(line.startswith(marks) for line in text.splitlines())
