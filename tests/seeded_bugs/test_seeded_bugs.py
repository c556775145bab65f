"""The tests catch the bugs of `bugs.toml`: nightly all of them, and with every change the table fits the code."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.seeded_bugs.__main__ import LEAST_ROWS, REPOSITORY, read_bugs, run_bugs, shortfalls

BUGS = read_bugs()


def test_the_line_and_the_test_of_every_row_are_there() -> None:
    """Whoever moves the line or the test rewrites the row in the same change."""
    problems = []
    for bug in BUGS:
        try:
            bug.changed(REPOSITORY)
        except (OSError, SyntaxError, ValueError) as error:
            problems.append(f"{bug.name}: {error}")
    assert problems == []


def test_there_are_as_many_rows_as_ever_and_some_for_each_subject() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= LEAST_ROWS
    subjects = Counter(bug.subject for bug in BUGS)
    assert len(subjects) >= 15
    assert min(subjects.values()) >= 2


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.mp
@pytest.mark.timeout(1800)
def test_every_bug_is_caught_by_the_test_of_its_row() -> None:
    assert shortfalls(run_bugs(BUGS, jobs=2)) == []


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.mp
@pytest.mark.timeout(300)
def test_a_bug_that_changes_nothing_and_a_line_that_has_gone_are_told() -> None:
    first = BUGS[0]
    harmless, gone = replace(first, bug=first.line), replace(first, line="no line of ours")
    verdicts = [result.verdict for result in run_bugs([harmless, gone], jobs=1)]
    assert verdicts[0] == "NOT caught"
    assert verdicts[1].startswith("error: its line has gone")
