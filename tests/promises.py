"""What the product promises, and the table `promise -> test` of tests/README.md.

A test that holds a promise has the marker `promise("name", ...)` with names of `PROMISES`. The table is made from the
source of the tests, without importing them:

    python -m tests.promises > tests/README.md
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

TESTS = Path(__file__).resolve().parent
NIGHTLY = " (nightly)"
# The promises by subject, each with a name for the marker.
PROMISES: dict[str, dict[str, str]] = {
    "Time account": {
        "account-closes": "On every clock the phases are disjoint, and phases + other = wall in integer nanoseconds.",
        "account-true": "A delay in one place shows up in that phase and in no other, but for declared causal links.",
        "verdict-right": "The verdict names the bottleneck and predicts the throughput that a change then reaches.",
        "measuring-changes-nothing": "Timing on or off: the same parameters bit for bit, and no added device wait.",
        "measuring-is-cheap": "Timing costs less than 1 % of the time.",
        "learner-phases": "Every runner and algorithm reports the learner phases with their fixed names.",
        "collector-phases": "The collector reports its own phases on its own clock, never added to the learner's.",
        "lanes-apart": "Device, rank and CPU lanes are never summed with phases.",
        "rates-from-counters": "Rates come from cumulative counters over a window, never from a subset of phases.",
    },
    "Records and metrics": {
        "metric-table": "All keys stand in one table, from which the panel, the sinks and the docs are generated.",
        "metric-names": "The names of the metrics are fixed; old names and those of UniLab are read as aliases.",
        "learning-curve-names": "Learning curves have the names that users know.",
        "raw-return": "Returns are raw: neither bootstrapped nor normalised.",
    },
    "Nothing is lost": {
        "no-torn-row": "No reader ever gets a torn or recycled row, whoever is killed.",
        "no-broken-checkpoint": "A save that was acknowledged can be loaded, whatever is killed or fails meanwhile.",
        "no-silent-success": "Exit code 0 means that the goal was reached.",
        "no-orphan": "No process and no shared memory outlives a run.",
        "no-hang": "Every wait has a deadline: a hung environment or peer ends the run, and is named.",
        "exact-resume": "In alternate mode a killed and resumed run ends bit for bit as an uninterrupted one.",
        "restart": "After a signal has killed a process, all begin again, within the allowed number of restarts.",
        "full-disk": "A full disk stops neither training nor the records that still can be written.",
        "nan-never-trained": "NaN or Inf changes no parameter, and ends the run with 65.",
    },
    "Algorithms": {
        "published-algorithms": "SAC, TD3, FlashSAC and APPO compute the updates of their papers.",
        "published-returns": "They reach the published returns.",
        "reset-rows": "The row after an episode's end is a reset row: never stored, counted or normalised.",
        "bootstrap": "Bootstraps on 1 - terminated, also when both flags are set.",
        "final-observation": "A truncated row keeps its true final observation.",
        "action-space": "Actions are in [-1, 1] inside; the bounds of the environment are applied at its door.",
        "log-prob": "log_prob is computed from the pre-tanh sample, in the space of [-1, 1].",
        "temperature-loss": "alpha_loss = -(alpha * (log_prob + target_entropy)).mean().",
        "td3-smoothing": "TD3's smoothing noise is drawn per dimension, in the space of [-1, 1].",
        "td3-delay": "TD3's targets move with the delayed update of the actor.",
        "utd": "UTD counts transitions, not vector steps.",
        "warm-up": "Warm-up actions are uniform; learning_starts counts env steps.",
        "n-step": "n-step returns stop at episode ends, never cross the write head, and use gamma^k for k actions.",
        "vtrace-gae": "V-trace with rho = c = 1 and no lag equals GAE(lambda).",
        "ratio-one": "APPO's ratio is exactly 1 at no lag.",
        "appo-truncation": "APPO bootstraps truncations from V(final observation) inside the recursion.",
        "ranks-together": "Ranks start identical, draw different rows and decide together to step, skip, save or stop.",
    },
    "Commands": {
        "make": "`make train`, `make help` and the other targets pass any override through.",
        "console": "`offpolicy --help` explains each command in a line.",
        "wheel": "The wheel installs one package, and trains outside the checkout.",
        "default-trains": "`make train algo=sac` without an override solves Pendulum.",
        "python": "Python programs train, load policies and call back.",
    },
    "Configuration": {
        "refusals": "An unknown key or an impossible value is refused before a process starts, with what is allowed.",
        "default-runner": "The default runner fits the algorithm; every algorithm trains on every runner it allows.",
        "any-env": "env.id takes any Gymnasium id with any group; env.kwargs takes free keys.",
        "cpu-ranks": "Several ranks train on a CPU over gloo.",
        "collect-modes": "alternate, overlap and free keep their definitions of policy lag.",
    },
    "A run": {
        "run-dir": "The run directory has the fixed files, and is resumed or refused, never overwritten.",
        "summary": "summary.json has its fixed fields, also after a crash or Ctrl-C.",
        "exit-codes": "Exit codes have their fixed meanings.",
        "last-words": "The last block on stderr names role, rank, pid, step and cause.",
        "panel": "The panel fits 80 x 24.",
        "plain-line": "Where stdout is no terminal, one plain line per interval is printed.",
    },
}


def promise_names() -> set[str]:
    """Returns the names of all promises."""
    return {name for promises in PROMISES.values() for name in promises}


def marked(tests: Path = TESTS) -> dict[str, list[str]]:
    """Returns the tests of each name that a marker has, as `file::function`, with ` (nightly)` where they are slow."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(tests.rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        of_file = [mark for node in tree.body if _is_pytestmark(node) for mark in _marks(node.value)]
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef) or not function.name.startswith("test"):
                continue
            marks = [*of_file, *(mark for decorator in function.decorator_list for mark in _marks(decorator))]
            is_nightly = any(name in ("slow", "alone", "gpu") for name, _ in marks)
            place = f"{path.relative_to(tests).as_posix()}::{function.name}{NIGHTLY * is_nightly}"
            for promise in dict.fromkeys(text for name, texts in marks if name == "promise" for text in texts):
                found[promise].append(place)
    return dict(found)


def _is_pytestmark(node: ast.stmt) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)


def _marks(node: ast.expr) -> Iterator[tuple[str, list[str]]]:
    """Yields the names below `pytest.mark` of a decorator or a list of marks, with the texts that they are called with.

    Marks of single cases, in `pytest.param`, do not count: the others have them not.
    """
    if isinstance(node, ast.List | ast.Tuple):
        for each in node.elts:
            yield from _marks(each)
        return
    part, arguments = (node.func, node.args) if isinstance(node, ast.Call) else (node, [])
    if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Attribute) and part.value.attr == "mark":
        yield part.attr, [a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)]


def page() -> str:
    """Returns tests/README.md."""
    places = marked()
    lines = [*HEAD, ""]
    for subject, promises in PROMISES.items():
        lines += [f"## {subject}", "", "| promise | tests |", "|---|---|"]
        for name, text in promises.items():
            cells = [
                f"`{place.removesuffix(NIGHTLY)}`{NIGHTLY * place.endswith(NIGHTLY)}" for place in places.get(name, ())
            ]
            lines.append(f"| **{name}**: {text} | {'<br>'.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


HEAD = """\
# Tests

`make test-all` is what a change must pass. `make test-slow` is the nightly set: what measures time,
the full matrices, kill loops, learning bands. `make test-slow args='-k name'` runs a part of it.

| directory | what it tests |
|---|---|
| `unit/` | equations and contracts, in one process |
| `processes/` | runs as real processes, some of which are killed |
| `contracts/` | the configuration, the names and the shape of the code as a whole |
| `seeded_bugs/` | 42 bugs, one line each, and the test that catches each of them |
| `chaos/` | random faults in every runner (`make chaos`) |
| `learning/`, `peers/`, `gpu/` | published returns, other trainers, CUDA |

A test holds a promise to a user or an equation of a paper. It reads no private attribute and
survives a redesign. The tables below are made from the markers `promise(...)` of the tests by
`python -m tests.promises > tests/README.md`; `promises.py` has the text of each promise.
""".splitlines()


if __name__ == "__main__":
    print(page(), end="")
