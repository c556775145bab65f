"""The tables of a comparison as text."""

from __future__ import annotations

import numpy as np
import pytest

from offpolicy.analysis.bootstrap import Interval
from offpolicy.analysis.compare import Cell, Row, Section
from offpolicy.analysis.report import Report, markdown, quantity


def test_a_row_of_markdown_has_one_cell_per_label() -> None:
    row = Row("Train", (Cell(10.0), Cell(5.0, Interval(-0.5, -0.6, -0.4), "faster")))
    text = markdown(Report(("a", "b|c"), (Section("ms", [row]),), ("a | note",)), None)
    assert "| ms | a | b\\|c |\n| --- | ---: | ---: |\n| Train | 10.0 | 5.000 -50% [-60, -40] **faster** |" in text
    assert "- a \\| note" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.0012, "0.001"), (9.87654, "9.877"), (123.456, "123.5"), (12345.6, "12,346"), (1.25e9, "1.25G")),
        *((-0.0001, "0.000"), (9.9996, "10.0"), (999.96, "1,000"), (999_999.7, "1M")),
        *((9.994e8, "999M"), (9.996e8, "1G"), (-9.996e11, "-1T"), (np.nan, "-")),
    ],
)
def test_a_quantity_has_few_characters(value: float, text: str) -> None:
    assert quantity(value) == text
