"""Every ban of pyproject.toml catches its violation, and what ruff cannot see is searched for in the syntax tree."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

# file -> the rule it must break, or None where it is allowed
SEEDED = {
    **{
        f"offpolicy/replay/clock_{name}.py": (f"import time\nnow = time.{name}()\n", "TID251")
        for name in (
            "time",
            "time_ns",
            "perf_counter",
            "perf_counter_ns",
            "monotonic",
            "monotonic_ns",
            "process_time",
            "process_time_ns",
            "thread_time",
            "thread_time_ns",
        )
    },
    "offpolicy/replay/clock_from.py": ("from time import perf_counter_ns\nnow = perf_counter_ns()\n", "TID251"),
    "runners/clock.py": ("import time\nnow = time.monotonic()\n", "TID251"),
    "offpolicy/algos/sync.py": ("import torch\ntorch.cuda.synchronize()\n", "TID251"),
    "offpolicy/algos/event.py": ("import torch\nevent = torch.cuda.Event(enable_timing=True)\n", "TID251"),
    "offpolicy/processes/unpickle.py": ("import pickle\npickle.loads(b'')\n", "TID251"),
    "offpolicy/processes/cloud.py": ("import cloudpickle\ncloudpickle.dumps(1)\n", "TID251"),
    "offpolicy/algos/load.py": ("import torch\ntorch.load('x')\n", "TID251"),
    "offpolicy/algos/save.py": ("import torch\ntorch.save(1, 'x')\n", "TID251"),
    **{
        f"offpolicy/replay/mp_{name.lower()}.py": (f"import multiprocessing\nx = multiprocessing.{name}()\n", "TID251")
        for name in ("Lock", "RLock", "Event", "Queue", "SimpleQueue", "Condition", "Semaphore", "Barrier", "Manager")
    },
    "offpolicy/logger/shout.py": ("print('hello')\n", "T201"),
    "offpolicy/nets/relative.py": ("from . import mlp as mlp\n", "TID252"),
    "offpolicy/replay/many.py": ("def f(a, b, c, d, e, g, h):\n    return a\n", "PLR0913"),
    "offpolicy/replay/silent.py": ("class Nameless:\n    x = 1\n", "D101"),
    "offpolicy/timing/clock_allowed.py": ("import time\nnow = time.perf_counter_ns()\n", None),
    "tests/unit/test_clock_allowed.py": ("import time\nnow = time.monotonic()\n", None),
    "benchmarks/clock_allowed.py": ("import time\n\nprint(time.perf_counter())\n", None),
    "runners/relative_allowed.py": ("from . import wiring as wiring\n", None),
    "offpolicy/processes/sleep_allowed.py": ("import time\ntime.sleep(0.1)\n", None),
}
STYLE = {"D100", "I001", "E402", "E302", "E305"}  # the seeds are not tidy


def test_ruff_reports_each_seeded_violation_and_accepts_what_is_allowed_there(tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    for name, (source, _) in SEEDED.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=json", "."]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    found: dict[str, set[str]] = {name: set() for name in SEEDED}
    for problem in json.loads(result.stdout):
        found[str(Path(problem["filename"]).relative_to(tmp_path))].add(problem["code"])
    assert [name for name, (_, rule) in SEEDED.items() if rule and rule not in found[name]] == []
    assert {name: found[name] - STYLE for name, (_, rule) in SEEDED.items() if not rule and found[name] - STYLE} == {}


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
