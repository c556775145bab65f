"""The sites of fault injection: the table names all that are in the code, and chaos knows who comes by."""

from __future__ import annotations

import re
from pathlib import Path

from offpolicy.fault import SITES
from tests.chaos.disturbances import NOT_PASSED, PASSED_BY

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_table_holds_exactly_the_sites_of_the_code_and_chaos_knows_them() -> None:
    texts = [path.read_text() for package in ("offpolicy", "runners") for path in (REPOSITORY / package).rglob("*.py")]
    assert {site for text in texts for site in re.findall(r'\bfault\.hit\("([a-z_.]+)"', text)} == set(SITES)
    assert PASSED_BY.keys() | NOT_PASSED == SITES.keys()
