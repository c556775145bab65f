"""Files of a checkpoint with hostile content and right digests."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

HUGE = 10**400
DEEP: Any = []
for _ in range(400):
    DEEP = [DEEP]
VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 7, 2**31, 2**53, 2**63, 2**64, -(2**70), HUGE),
    *(0.5, -1.5, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "x", "-1", "7", "\x00", "９", "9" * 5000, "ab" * 9, "x" * 100_000),
    *([], [None], [-1], [0], [1, 2], [2**60], ["x"], [[]], DEEP, [1] * 5000),
    *({}, {"": 0}, {"state": {}}, {"num_updates": -1}),
]
MISSING = object()  # a value that is left out


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of a JSON value and of everything in it."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:20]) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of a JSON value with another one at a path."""
    if not path:
        return None if new is MISSING else copy.deepcopy(new)
    result = copy.copy(value)
    if new is MISSING and len(path) == 1:
        del result[path[0]]
    else:
        result[path[0]] = changed(value[path[0]], path[1:], new)
    return result


def mutations() -> st.SearchStrategy[Callable[[Any], Any]]:
    """Functions that change one or two places of a JSON value."""
    one = st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from([*VALUES, MISSING]))

    def apply(value: Any, changes: list[tuple[float, Any]]) -> Any:
        for where, new in changes:
            paths = list(places(value))
            value = changed(value, paths[int(where * len(paths))], new)
        return value

    return st.lists(one, min_size=1, max_size=2).map(lambda changes: lambda value: apply(value, changes))


def rewrite(checkpoint: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Changes the JSON file `name` of a checkpoint, and its manifest to match."""
    path, listed = checkpoint / f"{name}.json", json.loads((checkpoint / "MANIFEST.json").read_text())
    content = json.dumps(change(json.loads(path.read_text()))).encode()
    path.unlink()  # a hard link may be another checkpoint's
    path.write_bytes(content)
    listed["files"][path.name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (checkpoint / "MANIFEST.json").write_text(json.dumps(listed))
