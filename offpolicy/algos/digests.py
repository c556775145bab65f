"""Digests of modules of `algos` and `nets`, by which `fast.py` sees that one of them has changed."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import offpolicy


def changed_module(start: str, digests: Mapping[str, str]) -> str:
    """Returns the first module of the closure of `start` that has another digest, or none; '' if all are the same."""
    return next((name for name in sorted(closure(start)) if digests.get(name) != digest_of(name)), "")


@functools.cache
def closure(start: str) -> frozenset[str]:
    """Returns a module and all of `algos` and `nets` that it imports, directly or not."""
    found, waiting = set[str](), [start]
    while waiting:
        name = waiting.pop()
        if name not in found and name.startswith(("offpolicy.algos.", "offpolicy.nets.")):
            found.add(name)
            waiting += [node.module or "" for node in _tree(name).body if isinstance(node, ast.ImportFrom)]
    return frozenset(found)


@functools.cache
def digest_of(name: str) -> str:
    """Returns the digest of a module's syntax tree without docstrings, the same in every version of Python."""
    return hashlib.sha256(" ".join(_words(_tree(name))).encode()).hexdigest()[:16]


def _tree(name: str) -> ast.Module:
    return ast.parse(Path(offpolicy.__file__).parents[1].joinpath(*name.split(".")).with_suffix(".py").read_text())


def _words(node: object) -> Iterator[str]:
    """Yields the words of a syntax tree."""
    if isinstance(node, ast.AST):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
        yield type(node).__name__
        for name, value in ast.iter_fields(node):
            yield from (name, *_words(value)) if value not in (None, []) else ()
    elif isinstance(node, list):
        yield from ("[", *(word for one in node for word in _words(one)), "]")
    else:
        yield repr(node)
