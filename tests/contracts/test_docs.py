"""The documents: paths of calls that exist, short pages where they promise it, lines that fit."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
STEP = re.compile(r"`([\w/]+\.py):([\w.]+)`")
MAX_WIDTH = 100  # characters of a line; tables, code and long links cannot be wrapped


def section(title: str) -> str:
    text = (DOCS / "architecture.md").read_text()
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


def defined_names(path: Path) -> set[str]:
    """Functions and classes of a module, and methods as `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return names


@pytest.mark.parametrize(
    ("title", "most"),
    [
        ("From the command to the first gradient", 30),
        ("One transition, from the environment to a gradient", 25),
    ],
)
def test_every_step_of_a_path_exists(title: str, most: int) -> None:
    steps = STEP.findall(section(title))
    assert 15 <= len(steps) <= most
    for file, name in steps:
        path = next(root / file for root in (REPOSITORY / "offpolicy", REPOSITORY) if (root / file).is_file())
        assert name in defined_names(path), f"{file}:{name}"


def test_the_path_to_the_first_gradient_is_in_few_files_of_the_shell() -> None:
    files = {file for file, _ in STEP.findall(section("From the command to the first gradient"))}
    assert len([file for file in files if file.startswith(("runners/", "launch/"))]) <= 10


def test_the_panel_is_read_in_a_page() -> None:
    assert len((DOCS / "panel.md").read_text().splitlines()) <= 60


def prose(path: Path) -> list[str]:
    """The lines of a document that can be wrapped."""
    lines, is_code = [], False
    for line in path.read_text().splitlines():
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith(("|", "    ", "!")) and "](" not in line[MAX_WIDTH - 40 :]:
            lines.append(line)
    return lines


@pytest.mark.parametrize(
    "path",
    [*sorted(DOCS.rglob("*.md")), *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))],
    ids=lambda path: path.name,
)
def test_lines_fit(path: Path) -> None:
    assert [line for line in prose(path) if len(line) > MAX_WIDTH] == []
