"""Digests of modules of `algos` and `nets`, by which `fast.py` sees that one of them has changed."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

import offpolicy


def changed_module(start: str, digests: Mapping[str, str]) -> str:
    """Returns the first module of `digests_of(start)` that has another digest here, or none; '' if all are the same."""
    return next((name for name, digest in sorted(digests_of(start).items()) if digests.get(name) != digest), "")


@functools.cache
def digests_of(start: str) -> Mapping[str, str]:
    """Returns the digests of a module and of all of `algos` and `nets` that it imports, directly or not.

    They are of the syntax trees without docstrings, the same in every version of Python.
    """
    found, waiting = dict[str, str](), [start]
    while waiting:
        name = waiting.pop()
        if name not in found and name.startswith(("offpolicy.algos.", "offpolicy.nets.")):
            path = Path(offpolicy.__file__).parents[1].joinpath(*name.split(".")).with_suffix(".py")
            tree = ast.parse(path.read_text())
            waiting += [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
            found[name] = hashlib.sha256(" ".join(_words(tree, [])).encode()).hexdigest()[:16]
    return found


def _words(node: object, words: list[str]) -> list[str]:
    """Appends the words of a syntax tree, whose docstrings it removes; returns all words."""
    if isinstance(node, ast.AST):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            del node.body[0]
        words.append(type(node).__name__)
        for name, value in ast.iter_fields(node):
            if value not in (None, []):
                words.append(name)
                _words(value, words)
    elif isinstance(node, list):
        words.append("[")
        for one in node:
            _words(one, words)
        words.append("]")
    else:
        words.append(repr(node))
    return words
