"""The table of docs/reliability.md: every row names a test that exists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from offpolicy.config.rules import RESUMABLE

REPOSITORY = Path(__file__).resolve().parents[2]
HEADER = ["what happens", "what the run does", "saved", "exit", "test", "seeded bug"]


def table(text: str) -> list[list[str]]:
    """The cells of the first table: its header, then its rows."""
    lines = [line for line in text.partition("\n|")[2].partition("\n\n")[0].splitlines() if line]
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    return [cells[0], *cells[2:]]


def missing_test(row: list[str]) -> str | None:
    """What is wrong with the test that a row names; None if there is such a test."""
    named = re.fullmatch(r"`(test_\w+)::(test_\w+)`", row[4])
    if named is None:
        return f"{row[0]}: {row[4]!r} is no `test_module::test_name`"
    module, name = named.groups()
    texts = [path.read_text() for path in (REPOSITORY / "tests").rglob(f"{module}.py")]
    return None if any(f"\ndef {name}(" in text for text in texts) else f"{row[0]}: no {module}::{name}"


def unmarked(row: list[str]) -> str | None:
    """What is wrong with a row that says it was provoked by real processes; None if it was, or does not say so."""
    module = row[4].strip("`").partition("::")[0]
    folders = {path.parent.name for path in (REPOSITORY / "tests").rglob(f"{module}.py")}
    is_real = bool(folders & {"processes", "chaos"})
    return None if is_real or "†" in row[0] + row[1] else f"{row[0]}: {module} is a unit test; mark the row with †"


def not_named(text: str, keys: Iterable[str]) -> set[str]:
    """The keys and sections that a text does not name: a key in full, or as `section.*`, or its section."""
    named = set(re.findall(r"`([a-z_.]+)`", text))
    return {key for key in keys if key not in named and key.partition(".")[0] not in named}


TABLE = table((REPOSITORY / "docs" / "reliability.md").read_text())


def test_the_table_has_its_columns() -> None:
    assert TABLE[0] == HEADER
    assert len(TABLE) > 30


@pytest.mark.parametrize("row", TABLE[1:], ids=lambda row: row[0][:40])
def test_every_row_names_a_test_that_exists(row: list[str]) -> None:
    assert len(row) == len(HEADER), row
    assert missing_test(row) is None
    assert unmarked(row) is None
    assert len(row[5]) > 3, "no seeded bug: what was broken to see that the test fails?"


def test_a_unit_test_that_is_passed_off_as_real_processes_is_found() -> None:
    row = ["x", "y", "no", "1", "`test_store::test_z`", "–"]
    assert unmarked(row) == "x: test_store is a unit test; mark the row with †"
    assert unmarked(["x †", *row[1:]]) is None
    assert unmarked([*row[:4], "`test_signals::test_z`", "–"]) is None


def test_what_a_resume_may_change_is_listed_in_full() -> None:
    text = (REPOSITORY / "docs" / "reliability.md").read_text()
    section = text.partition("## What a resume may change")[2].partition("\n## ")[0]
    assert not_named(section, RESUMABLE) == set()
    assert not_named("the section `log`, and `env.measure`", ("log.panel", "env.measure", "device")) == {"device"}


def test_a_row_without_a_test_is_found() -> None:
    row = ["x", "y", "no", "1", "`test_signals::test_nobody_wrote_this`", "–"]
    assert missing_test(row) == "x: no test_signals::test_nobody_wrote_this"
    assert missing_test([*row[:4], "", "–"]) is not None
