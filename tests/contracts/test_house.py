"""The shape of the code: short runners, no import circle, no equal YAML, a test module for every module."""

from __future__ import annotations

import ast
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
RUNNERS = ("single_gpu", "double_buffer", "multi_gpu", "appo")
MAX_RUNNER_FILES = 10
NOT_IN_RUNNERS = {"rich", "matplotlib", "argparse"}
BATCH_SOURCES = {"configured_source", "direct_source", "prefetch_source", "resident_source", "rollout_source"}
# Modules without behaviour of their own: what they define is tested where it is used.
WITHOUT_TESTS = {"offpolicy/errors.py", "offpolicy/protocols.py"}
# Claims about several modules at once.
ACROSS_MODULES = {
    *("algos/test_probe_environments.py", "algos/test_schedules.py", "algos/test_transcription.py"),
    *("algos/test_launches.py", "algos/test_value_scale.py"),
    *(
        "test_attribution_rules.py",
        "test_simulated_device.py",
        "test_simulated_threads.py",
        "test_timed_tests.py",
        "test_traces.py",
        "replay/test_on_simulated_device.py",
        "checkpoint/test_store_crash.py",
        "collect/test_rollout_flow.py",
    ),
    *("timing/test_disabled.py", "timing/test_no_added_wait.py", "timing/test_pipeline.py"),
}
Graph = dict[str, set[str]]


def sources(root: Path, *packages: str) -> Iterator[Path]:
    for package in packages:
        yield from sorted((root / package).rglob("*.py"))


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def import_graph(root: Path) -> Graph:
    """Which module imports which; imports inside functions and under TYPE_CHECKING count too."""
    paths = {module_name(path.relative_to(root)): path for path in sources(root, "offpolicy", "runners")}
    graph: Graph = {}
    for name, path in paths.items():
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        graph[name] = {found for found in imported(path, package) if found in paths} - {name}
    if "offpolicy" in graph:
        graph["offpolicy"] = (
            set()
        )  # its names for users are imported when they are used: tests/contracts/test_import.py
    return graph


def imported(path: Path, package: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def circles(graph: Graph) -> list[list[str]]:
    """Groups of modules that import one another, directly or by way of others (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
            if target in stack:
                low[node] = min(low[node], low[target])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def test_runners_are_few_files() -> None:
    assert len(list((REPOSITORY / "runners").glob("*.py"))) <= MAX_RUNNER_FILES


@pytest.mark.parametrize("path", list(sources(REPOSITORY, "runners")), ids=lambda path: path.stem)
def test_a_runner_draws_and_parses_nothing(path: Path) -> None:
    assert {name.split(".")[0] for name in imported(path, "runners")} & NOT_IN_RUNNERS == set()


@pytest.mark.parametrize("runner", RUNNERS)
def test_every_runner_names_its_batch_source(runner: str) -> None:
    tree = ast.parse((REPOSITORY / "runners" / f"{runner}.py").read_text())
    (main,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "learner_main")
    called = {node.func.id for node in ast.walk(main) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert len(called & BATCH_SOURCES) == 1, called
    assert "Batch source" in (ast.get_docstring(tree) or "")


def test_no_modules_import_each_other() -> None:
    assert circles(import_graph(REPOSITORY)) == []


def test_a_circle_under_type_checking_is_found(tmp_path: Path) -> None:
    (tmp_path / "offpolicy").mkdir()
    (tmp_path / "runners").mkdir()
    (tmp_path / "offpolicy" / "a.py").write_text("import offpolicy.b\n")
    (tmp_path / "offpolicy" / "b.py").write_text("from offpolicy.c import d\n")
    late = "if TYPE_CHECKING:\n    from offpolicy import a\n"
    (tmp_path / "offpolicy" / "c.py").write_text(f"from typing import TYPE_CHECKING\n{late}d = 1\n")
    assert circles(import_graph(tmp_path)) == [["offpolicy.a", "offpolicy.b", "offpolicy.c"]]


def test_no_two_yaml_files_are_equal() -> None:
    by_content = defaultdict(list)
    for path in sorted((REPOSITORY / "conf").rglob("*.yaml")):
        by_content[hashlib.sha256(path.read_bytes()).hexdigest()].append(path.name)
    assert [names for names in by_content.values() if len(names) > 1] == []


def modules_with_behaviour() -> list[Path]:
    """The modules of the library, but for package files and those without behaviour of their own."""
    relative = (path.relative_to(REPOSITORY) for path in sources(REPOSITORY, "offpolicy"))
    return [path for path in relative if path.stem != "__init__" and path.as_posix() not in WITHOUT_TESTS]


@pytest.mark.parametrize("module", modules_with_behaviour(), ids=lambda path: path.as_posix())
def test_every_module_has_a_test_module_at_the_same_place(module: Path) -> None:
    place = REPOSITORY / "tests" / "unit" / module.relative_to("offpolicy").with_name(f"test_{module.stem}.py")
    assert place.is_file(), os.fspath(place.relative_to(REPOSITORY))


def test_every_test_module_has_its_module() -> None:
    unit = REPOSITORY / "tests" / "unit"
    strays = [
        path.relative_to(unit).as_posix()
        for path in sorted(unit.rglob("test_*.py"))
        if path.parent.name != "benchmarks"
        and not (REPOSITORY / "offpolicy" / path.relative_to(unit).with_name(path.name.removeprefix("test_"))).is_file()
    ]
    assert set(strays) == ACROSS_MODULES
