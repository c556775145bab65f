"""Counts the code: how much there is to read, and how much of it serves one caller.

`python -m tests.contracts.counts` counts this tree, `python -m tests.contracts.counts REVISION` a revision of it.
The limits of `counts.toml` hold these numbers; `test_limits.py` compares.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("offpolicy", "runners")
# Line ends, indentation and comments are no tokens of the program.
TOKENS = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
PRIVATE = re.compile(r"_[a-zA-Z]\w*")
PUBLIC = ("_replace", "_asdict", "_fields", "_make")  # of named tuples, in spite of their names
PATCH = re.compile(r"\.setattr\(|mock\.patch|import patch\b")
PATCHING = ("setattr", "delattr")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


def counts_of(sources: Mapping[str, str]) -> dict[str, float]:
    """Returns the counts of `sources`, from path to text.

    An entry of `*_with_one_call_site` is a function or class whose name is used once in the product, whatever its name.
    """
    product = {path: text for path, text in sources.items() if path.startswith(PRODUCT)}
    python = [text for path, text in product.items() if path.endswith(".py")]
    trees = [ast.parse(text) for text in python]
    lines = sum(text.count("\n") for text in python)
    definitions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, Definition)]
    whole = ast.Module([statement for tree in trees for statement in tree.body], [])
    once = [node for tree in trees for node in used_once(tree, is_private)] + used_once(whole, is_public)
    functions = [node for node in once if isinstance(node, Function)]
    return {
        "files": len(python),
        "lines": lines,
        "data_lines": sum(
            text.count("\n")
            for path, text in sources.items()
            if is_shipped_data(path) and path.startswith((*PRODUCT, "conf"))
        ),
        "tokens": sum(tokens_of(text) for text in python),
        "functions": sum(isinstance(node, Function) for node in definitions),
        "classes": sum(isinstance(node, ast.ClassDef) for node in definitions),
        "functions_with_one_call_site": len(functions),
        "classes_with_one_call_site": len(once) - len(functions),
        "private_helpers_used_once_per_1000_lines": round(
            1000 * sum(is_private(node.name) for node in functions) / lines, 1
        ),
        "longest_file": max(text.count("\n") for text in python),
        "modules": len(imports_of(product)),
        "longest_import_chain": longest_chain(imports_of(product)),
        "benchmark_lines": sum(text.count("\n") for path, text in sources.items() if is_benchmark(path)),
        "result_lines": sum(text.count("\n") for path, text in sources.items() if is_result(path)),
        "changelog_lines": sources.get("CHANGELOG.md", "").count("\n"),
    } | counts_of_tests([text for path, text in sources.items() if path.startswith("tests/") and path.endswith(".py")])


def package_lines(sources: Mapping[str, str]) -> dict[str, int]:
    """Returns the lines of Python of each package, those of the modules beside the packages together as `top`."""
    lines = Counter[str]()
    for path, text in sources.items():
        if path.startswith(PRODUCT) and path.endswith(".py"):
            top, *below, _ = path.split("/")
            lines[top if top == "runners" else below[0] if below else "top"] += text.count("\n")
    return dict(lines)


def imports_of(product: Mapping[str, str]) -> dict[str, set[str]]:
    """Returns which packages and top-level modules import which others, without what is imported for types only."""
    modules = {path: package_of(path.removesuffix(".py").replace("/", ".")) for path in product if path.endswith(".py")}
    graph: dict[str, set[str]] = {module: set() for module in modules.values() if module}
    for path, module in modules.items():
        for node in nodes_that_run(ast.parse(product[path])) if module else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            graph[module] |= {package_of(name) for name in names} & graph.keys() - {module}
    return graph


def nodes_that_run(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a tree, but for what is below `if TYPE_CHECKING`."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield from nodes_that_run(child)


def package_of(name: str) -> str:
    """Returns the package or top-level module of a module; '' for the package `offpolicy` itself."""
    top, *below = name.removesuffix(".__init__").split(".")
    return "runners" if top == "runners" else below[0] if top == "offpolicy" and below else ""


def longest_chain(graph: Mapping[str, set[str]]) -> int:
    """Returns how many modules import each other one after the other, at most. Raises `CycleError` for a circle."""
    depths: dict[str, int] = {}
    for module in TopologicalSorter(graph).static_order():
        depths[module] = 1 + max((depths[imported] for imported in graph[module]), default=0)
    return max(depths.values())


def counts_of_tests(sources: Sequence[str]) -> dict[str, float]:
    """Returns the lines of tests, and how much of them patches what is ours or holds on to what is private."""
    functions = [node for text in sources for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    tests = [function for function in functions if function.name.startswith("test")]
    return {
        "test_lines": sum(text.count("\n") for text in sources),
        "test_patches": sum(len(PATCH.findall(text)) for text in sources),
        "private_test_share": round(sum(bool(private_names(test)) for test in tests) / max(len(tests), 1), 4),
    }


def private_names(function: ast.FunctionDef) -> set[str]:
    """Returns the private attributes that a test reads or patches, of anything but its own `self`."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr) and node.attr not in PUBLIC:
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            names |= {node.attr} - ({node.attr} if owner in ("self", "cls", "os", "sys") else set())
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PATCHING:
            texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            names |= {text for text in texts if PRIVATE.fullmatch(text.rpartition(".")[2])}
    return names


def used_once(tree: ast.AST, is_looked_at: Callable[[str], bool]) -> list[Definition]:
    """Returns the definitions whose name is defined once and used once; an import is no use, nor is a definition.

    A private name is looked for in its own module, every other one in the whole product.
    """
    found = [node for node in ast.walk(tree) if isinstance(node, Definition) and is_looked_at(node.name)]
    definitions = Counter(node.name for node in found)
    uses = Counter(used_names(tree))
    return [node for node in found if definitions[node.name] == uses[node.name] == 1]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_public(name: str) -> bool:
    return not name.startswith("_")


def used_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def tokens_of(text: str) -> int:
    return sum(token.type in TOKENS for token in tokenize.generate_tokens(io.StringIO(text).readline))


def is_shipped_data(path: str) -> bool:
    return path.endswith((".toml", ".yaml", ".xml", ".json"))


def is_benchmark(path: str) -> bool:
    return path.startswith("benchmarks/") and path.endswith(".py")


def is_result(path: str) -> bool:
    return path.startswith("benchmarks/") and not path.endswith((".py", ".md"))


def sources_of(revision: str | None) -> dict[str, str]:
    """Returns the texts of a revision, or of the files of this tree that git knows."""
    if revision is None:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
        paths = [path for path in listed.stdout.split("\n") if is_counted(path) and (ROOT / path).is_file()]
        return {path: (ROOT / path).read_text() for path in paths}
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        members = {member.name: files.extractfile(member) for member in files if is_counted(member.name)}
        return {name: file.read().decode() for name, file in members.items() if file is not None}


def is_counted(path: str) -> bool:
    top = path.partition("/")[0]
    return path == "CHANGELOG.md" or (
        top in (*PRODUCT, "conf", "benchmarks", "tests")
        and path.endswith((".py", ".toml", ".yaml", ".xml", ".json", ".jsonl", ".csv"))
    )


if __name__ == "__main__":
    json.dump(counts_of(sources_of(*sys.argv[1:] or [None])), sys.stdout, indent=1)
    print()
