"""`python -m tests.seeded_bugs [--only NAME] [--jobs 2]`: the tests still catch the bugs of `bugs.toml`.

Each row changes one line in a copy of the checkout. The test that it names, alone, must fail there, and must pass in
the unchanged copy. Exits with 1 if a row is not caught or cannot be applied, if there are too few rows, or if too few
of them are caught by tests that every change must pass.
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
LEAST_ROWS = 40  # never lowered
LEAST_IN_CHANGE_SET = 36
CHANGE_SET = "not slow and not gpu and not alone"
TEST_TIMEOUT_S, ROW_TIMEOUT_S, UNCHANGED_TIMEOUT_S = 60, 150, 900
COPIED = ("offpolicy", "runners", "conf", "tests", "benchmarks", "examples", "docs", "*.toml", "*.md", "Makefile")
MARK = "OFFPOLICY_SEEDED_BUGS"  # in the environment of every process of a copy, with the copy's path


@dataclass(frozen=True, slots=True)
class Bug:
    """A row: `line`, the whole line of `file` without its indentation, becomes `bug`; `test` fails then."""

    name: str
    subject: str
    file: str
    line: str
    bug: str
    test: str

    def changed(self, root: Path) -> str:
        """Returns the text of the file with the bug. Raises ValueError where it cannot be there, or no test is."""
        lines = (root / self.file).read_text().splitlines(keepends=True)
        found = [index for index, line in enumerate(lines) if line.strip() == self.line]
        if len(found) != 1:
            raise ValueError(f"its line has gone: there are {len(found)} of it in {self.file}")
        lines[found[0]] = lines[found[0]].replace(self.line, self.bug)
        compile("".join(lines), self.file, "exec")
        file, _, test = self.test.partition("::")
        tree = ast.parse((root / file).read_text())
        if test.partition("[")[0] not in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]:
            raise ValueError(f"its test has gone: {self.test}")
        return "".join(lines)


class Result(NamedTuple):
    """The verdict on a row: `caught`, `NOT caught`, or the error that kept it from being judged."""

    bug: Bug
    verdict: str
    took_s: float
    is_in_change_set: bool


def read_bugs() -> list[Bug]:
    """Returns the rows of the table."""
    return [Bug(**row) for row in tomllib.loads(Path(__file__).with_name("bugs.toml").read_text())["bug"]]


class Copy:
    """A copy of the checkout in `root`, whose processes import the copy's modules, not those that are installed."""

    def __init__(self, root: Path) -> None:
        self.root, self._basetemp = root / "copy", root / "tmp"
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *COPIED]
        names = subprocess.run(listed, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
        for name in filter(os.path.isfile, (f"{REPOSITORY}/{name}" for name in names.split("\0") if name)):
            target = self.root / Path(name).relative_to(REPOSITORY)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, target)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        own = {"PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", MARK: str(self.root)}
        self._environ = kept | own
        _, imported = self._run(["-P", "-c", "import offpolicy, runners; print(offpolicy.__file__)"], ROW_TIMEOUT_S)
        if not imported.startswith(str(self.root)):
            raise RuntimeError(f"the copy in {self.root} is not what is imported: {imported}")

    def pytest(self, marks: str, *arguments: str, timeout_s: float = ROW_TIMEOUT_S) -> tuple[int, str]:
        """Runs pytest on the tests with these marks; returns its exit status and its output."""
        options = ["-q", "-p", "no:cacheprovider", "-m", marks, f"--timeout={TEST_TIMEOUT_S}"]
        return self._run(["-m", "pytest", *options, f"--basetemp={self._basetemp}", *arguments], timeout_s)

    @contextmanager
    def with_bug(self, bug: Bug) -> Iterator[None]:
        """Changes the line within the block. Raises as `Bug.changed`."""
        file, text = self.root / bug.file, bug.changed(self.root)
        original, times = file.read_text(), file.stat()
        try:
            file.write_text(text)  # its new time makes the compiled one stale
            yield
        finally:
            file.write_text(original)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _run(self, arguments: Sequence[str], timeout_s: float) -> tuple[int, str]:
        """Runs Python in the copy, and ends what it leaves behind. A timeout is exit status 124."""
        environ = self._environ | {"PYTHONDONTWRITEBYTECODE": "1"}  # none of a bug is left for the next row
        command = [sys.executable, *arguments]
        try:
            done = subprocess.run(
                command, cwd=self.root, env=environ, timeout=timeout_s, check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            return done.returncode, done.stdout
        except subprocess.TimeoutExpired:
            return 124, f"took more than {timeout_s:g} s"
        finally:
            self._kill_left()

    def _kill_left(self) -> None:
        """Kills every process that has inherited the environment of this copy."""
        mark = f"{MARK}={self.root}".encode()
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):  # it has ended meanwhile, or is somebody else's
                if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    os.kill(int(name), signal.SIGKILL)


def judge(bug: Bug, copy: Copy, marks: str) -> str:
    """Returns the verdict on a bug by its test among those with `marks`."""
    try:
        with copy.with_bug(bug):
            status, output = copy.pytest(marks, "-x", bug.test)
    except (OSError, SyntaxError, ValueError) as error:
        return f"error: {error}"
    last = output.strip().rpartition("\n")[2]
    return {0: "NOT caught", 1: "caught"}.get(status, f"error: pytest exited with {status}: {last}")


def change_set_of(tests: Sequence[str], copy: Copy) -> set[str]:
    """Returns those of the tests that every change must pass, at least with some of their parameters."""
    collected = copy.pytest(CHANGE_SET, "--collect-only", *tests)[1].splitlines()
    return {name for line in collected for name in (line, line.partition("[")[0])}.intersection(tests)


def require_passes(tests: Sequence[str], change_set: set[str], copy: Copy) -> None:
    """Raises RuntimeError unless the tests pass without a bug."""
    for marks, some in ((CHANGE_SET, change_set), ("", set(tests) - change_set)):
        status, output = copy.pytest(marks, *sorted(some), timeout_s=UNCHANGED_TIMEOUT_S) if some else (0, "")
        if status:
            raise RuntimeError(f"tests fail without a bug, pytest exited with {status}:\n{output}")


def run_bugs(bugs: Sequence[Bug], jobs: int) -> list[Result]:
    """Judges all rows, `jobs` at a time, and prints a line on each. Raises RuntimeError where the tests fail anyway."""
    with ExitStack() as stack:
        roots = [stack.enter_context(tempfile.TemporaryDirectory(prefix="seeded-")) for _ in range(jobs)]
        first, *others = [Copy(Path(root)) for root in roots]
        tests = list(dict.fromkeys(bug.test for bug in bugs))
        change_set = change_set_of(tests, first)
        require_passes(tests, change_set, first)
        copies = queue.SimpleQueue[Copy]()
        for copy in (first, *others):
            copies.put(copy)

        def run(bug: Bug) -> Result:
            copy, started_s, is_in_change_set = copies.get(), time.monotonic(), bug.test in change_set
            try:
                verdict = judge(bug, copy, CHANGE_SET if is_in_change_set else "")
            finally:
                copies.put(copy)
            took_s = time.monotonic() - started_s
            print(f"{took_s:5.1f} s  {bug.subject}: {bug.name}: {verdict}", flush=True)
            return Result(bug, verdict, took_s, is_in_change_set)

        return list(stack.enter_context(ThreadPoolExecutor(jobs)).map(run, bugs))


def shortfalls(results: Sequence[Result]) -> list[str]:
    """Returns what is missing in the results of all rows."""
    missed = [f"{result.bug.name}: {result.verdict}" for result in results if result.verdict != "caught"]
    num_early = sum(result.is_in_change_set for result in results if result.verdict == "caught")
    if len(results) < LEAST_ROWS:
        missed.append(f"{len(results)} rows, at least {LEAST_ROWS} are wanted")
    if num_early < LEAST_IN_CHANGE_SET:
        missed.append(f"{num_early} rows caught by tests of every change, at least {LEAST_IN_CHANGE_SET} are wanted")
    return missed


def main(words: Sequence[str] | None = None) -> int:
    """Runs the rows that are asked for; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.seeded_bugs", description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name, subject or file has this text (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="rows at a time, each in a copy of its own")
    given = parser.parse_args(words)
    started_s = time.monotonic()
    bugs = [bug for bug in read_bugs() if any(given.only in text for text in (bug.name, bug.subject, bug.file))]
    results = run_bugs(bugs, given.jobs)
    missed = [result for result in results if result.verdict != "caught"]
    missing = [f"{result.bug.name}: {result.verdict}" for result in missed] if given.only else shortfalls(results)
    count = Counter(result.is_in_change_set for result in results if result.verdict == "caught")
    print(
        f"{len(results)} rows, {count.total()} caught, {count[True]} of them by tests of every change,"
        f" in {time.monotonic() - started_s:.0f} s",
        *missing,
        sep="\n",
    )
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
