"""The size of the tests, and how much of them holds on to what is private or patches what is ours."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
MAX_LINES = 52_000
MAX_PATCHES = 130
MAX_PRIVATE = 0.02  # of the test functions
PRIVATE = re.compile(r"_[a-zA-Z]\w*")
# Public in spite of their names: of named tuples, and of `os` and `sys`.
PUBLIC = ("_replace", "_asdict", "_fields", "_make")
MODULES = ("os", "sys")
PATCH = re.compile(r"\.setattr\(|mock\.patch|import patch\b")


def sources() -> Iterator[str]:
    return (path.read_text() for path in sorted(TESTS.rglob("*.py")) if path != Path(__file__))


def private_names(function: ast.FunctionDef) -> set[str]:
    """Returns the private attributes that a function reads or patches, of anything but its own `self`."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr) and node.attr not in PUBLIC:
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            names |= {node.attr} - ({node.attr} if owner in ("self", "cls", *MODULES) else set())
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr
            in (
                "setattr",
                "delattr",
            )
        ):
            texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            names |= {text for text in texts if PRIVATE.fullmatch(text.rpartition(".")[2])}
    return names


def functions_of(source: str) -> list[ast.FunctionDef]:
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    return [function for function in functions if function.name.startswith("test")]


def test_the_tests_are_no_longer_than_is_read() -> None:
    assert sum(source.count("\n") for source in sources()) <= MAX_LINES


def test_few_tests_patch_what_they_test() -> None:
    assert sum(len(PATCH.findall(source)) for source in sources()) <= MAX_PATCHES


def test_few_tests_hold_on_to_what_is_private() -> None:
    functions = [function for source in sources() for function in functions_of(source)]
    private = [function.name for function in functions if private_names(function)]
    assert len(private) <= MAX_PRIVATE * len(functions), private
