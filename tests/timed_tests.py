"""Runs tests that measure time, and repeats those that failed while the machine's host took its cores.

`python -m tests.timed_tests -m alone` takes pytest's arguments. On a virtual machine whose host gives its cores to
others for a while ("steal" in /proc/stat), a test of times fails without a fault of ours. Where every failure of a
session fell into such a while, the failed tests run once more, with new fixtures; after `ROUNDS` a failure counts.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROUNDS = 3
STOLEN = 0.02  # of all cores' time: where it was 0.25, a wait for 25 ms was 44 ms longer
DISTURBED = 100  # exit status: every failure fell into a while in which the host took more than that


def core_ticks() -> tuple[int, int]:
    """Time of all cores that the host took ("steal"), and all of it, in ticks since the machine started."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[7], sum(ticks)


class HostWatch:
    """A plugin of pytest that tells the failures of a disturbed machine from the others.

    What a test measures may have been run for the first test of its file, so the share is that since the file's start.
    """

    def __init__(self) -> None:
        self._file = ""
        self._before = (0, 0)
        self._stolen: list[float] = []  # by failure

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Notes the time of the cores at the start of a file."""
        file = nodeid.split("::")[0]
        if file != self._file:
            self._file, self._before = file, core_ticks()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes what the host took until a failure."""
        if report.failed:
            stolen, passed = (now - then for now, then in zip(core_ticks(), self._before, strict=True))
            self._stolen.append(stolen / max(passed, 1))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Ends with `DISTURBED` where no failure counts."""
        if exitstatus == pytest.ExitCode.TESTS_FAILED and self._stolen and min(self._stolen) > STOLEN:
            session.exitstatus = DISTURBED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints by failure what the host took."""
        if self._stolen:
            shares = ", ".join(f"{share:.1%}" for share in self._stolen)
            terminalreporter.write_line(f"the machine's host took of the cores, by failure: {shares}")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the watch: this module is a plugin of the sessions that it starts."""
    config.pluginmanager.register(HostWatch())


def main(arguments: Sequence[str]) -> int:
    """Runs the tests that pytest's arguments choose; returns pytest's exit status."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.timed_tests", *arguments]
    for number in range(ROUNDS):
        status = subprocess.call([*command, "--last-failed"] if number else command)
        if status != DISTURBED:
            return status
        again = "they run again" if number < ROUNDS - 1 else f"they failed {ROUNDS} times"
        print(f"tests failed only while the host took more than {STOLEN:.0%} of the cores: {again}", flush=True)
    return int(pytest.ExitCode.TESTS_FAILED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
