"""A failure counts at once on a quiet machine, and after three rounds on one whose host takes the cores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.timed_tests import ROUNDS, core_ticks

REPOSITORY = Path(__file__).resolve().parents[2]
# A clock of the cores that moves by 100 ticks a look, of which the host takes TAKEN.
CORES = """
import itertools, tests.timed_tests as timed_tests
looks = itertools.count()
timed_tests.core_ticks = lambda: (lambda look: ({taken} * look, 100 * look))(next(looks))
"""
FAILS_TWICE = """
from pathlib import Path

def test_time():
    rounds = Path(__file__).with_name("rounds")
    rounds.write_text(rounds.read_text() + "." if rounds.exists() else ".")
    assert len(rounds.read_text()) > {failures}

def test_that_passes():
    passed = Path(__file__).with_name("passed")
    passed.write_text(passed.read_text() + "." if passed.exists() else ".")
"""


def run(directory: Path, failures: int, taken: int) -> tuple[int, int, str]:
    """Returns exit status, rounds and output of a session whose first test fails some times."""
    (directory / "cores.py").write_text(CORES.format(taken=taken))
    (directory / "test_time.py").write_text(FAILS_TWICE.format(failures=failures))
    environ = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": f"{directory}:{REPOSITORY}"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.timed_tests", "-p", "cores", "-c", "/dev/null", f"--rootdir={directory}",
         "-o", f"cache_dir={directory}/cache", str(directory)],
        env=environ, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, len((directory / "rounds").read_text()), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("failures", "taken", "status", "rounds"),
    [
        pytest.param(0, 50, 0, 1, id="passes"),
        pytest.param(9, 1, 1, 1, id="a quiet machine"),
        pytest.param(2, 3, 0, 3, id="a disturbed machine"),
        pytest.param(9, 3, 1, ROUNDS, id="fails whenever it runs"),
    ],
)
def test_a_failure_is_repeated_only_while_the_host_takes_the_cores(
    tmp_path: Path, failures: int, taken: int, status: int, rounds: int
) -> None:
    assert run(tmp_path, failures, taken)[:2] == (status, rounds)


def test_what_passed_is_not_repeated_and_the_reason_is_said(tmp_path: Path) -> None:
    _, _, output = run(tmp_path, failures=1, taken=3)
    assert (tmp_path / "passed").read_text() == "."
    assert "tests failed only while the host took more than 2% of the cores: they run again" in output
    assert "the machine's host took of the cores, by failure: 3.0%" in output


def test_the_cores_of_this_machine_can_be_read() -> None:
    stolen, passed = core_ticks()
    assert 0 <= stolen <= passed
