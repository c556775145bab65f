"""The shape of the code: layers that hold, no import circle, short runners."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MAX_RUNNER_FILES = 10
NOT_IN_RUNNERS = {"rich", "matplotlib", "argparse"}
LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
WITHOUT_TORCH = ("offpolicy.logger", "offpolicy.config.schema", "offpolicy.cli", "offpolicy.config.overrides")


def imported(path: Path, package: str) -> Iterator[str]:
    """What a module imports, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def import_graph() -> dict[str, set[str]]:
    """Which module imports which."""
    paths = {
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
        for package in ("offpolicy", "runners")
        for path in (REPOSITORY / package).rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        graph[name] = {found for found in imported(path, package) if found in paths} - {name}
    return graph | {"offpolicy": set[str]()}  # its names for users are imported when they are used: test_import.py


def test_runners_are_few_files_that_draw_and_parse_nothing() -> None:
    files = list((REPOSITORY / "runners").glob("*.py"))
    assert len(files) <= MAX_RUNNER_FILES
    for path in files:
        assert {name.split(".")[0] for name in imported(path, "runners")} & NOT_IN_RUNNERS == set(), path.name


def test_no_modules_import_each_other() -> None:
    graph = import_graph()
    assert len(graph) > 100
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"an import circle: {error.args[1]}") from None


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "200", "NO_COLOR": "1"}
    command = [sys.executable, "-c", LINT]
    return subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_the_code_keeps_to_its_layers() -> None:
    result = lint_imports(REPOSITORY)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_supervisors_modules_load_without_torch() -> None:
    code = (
        "import importlib, pkgutil, sys\n"
        f"for name in {WITHOUT_TORCH}:\n"
        "    package = importlib.import_module(name)\n"
        "    for found in pkgutil.iter_modules(getattr(package, '__path__', [])):\n"
        "        importlib.import_module(f'{name}.{found.name}')\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    assert subprocess.run([sys.executable, "-c", code], env=environ, timeout=60, check=False).returncode == 0
