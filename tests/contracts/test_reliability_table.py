"""The table of docs/reliability.md: every row names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


TABLE = table((REPOSITORY / "docs" / "reliability.md").read_text())


def test_the_table_has_its_columns() -> None:
    assert TABLE[0] == HEADER
    assert len(TABLE) > 30


@pytest.mark.parametrize("row", TABLE[1:], ids=lambda row: row[0][:40])
def test_every_row_names_a_test_that_exists(row: list[str]) -> None:
    assert len(row) == len(HEADER), row
    assert missing_test(row) is None


def test_a_row_without_a_test_is_found() -> None:
    row = ["x", "y", "no", "1", "`test_signals::test_nobody_wrote_this`", "–"]
    assert missing_test(row) == "x: no test_signals::test_nobody_wrote_this"
    assert missing_test([*row[:4], "", "–"]) is not None
