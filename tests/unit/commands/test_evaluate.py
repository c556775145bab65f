"""`offpolicy eval`: the table of policies side by side."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console

from offpolicy.commands.evaluate import comparison
from offpolicy.types import Episodes


def shown(labelled: dict[str, Episodes], measure: str | None = None, width: int = 80) -> list[str]:
    out = io.StringIO()
    Console(width=width, file=out).print(comparison(labelled, measure))
    return out.getvalue().splitlines()


def episodes(*returns: float) -> Episodes:
    values = np.array(returns)
    return Episodes(values, np.full(len(values), 7.0), values / 10.0)


def test_every_policy_has_its_mean_and_interval_and_the_others_their_place_beside_the_first() -> None:
    lines = shown({"teacher": episodes(10.0, 10.0), "student": episodes(5.0, 5.0)})
    (teacher,) = [line for line in lines if line.strip().startswith("teacher ")]
    assert "10.0 [10.0, 10.0]" in teacher
    assert teacher.split()[-1] == "7.0"
    against = [line for line in lines if "student" in line][1]
    assert against.split() == ["student", "return", "5.0", "[5.0,", "5.0]", "0.50", "[0.50,", "0.50]"]


def test_what_is_measured_stands_beside_the_return() -> None:
    lines = shown({"a": episodes(20.0, 20.0), "b": episodes(10.0, 10.0)}, measure="way")
    assert "2.0 [2.0, 2.0]" in next(line for line in lines if line.strip().startswith("a "))
    assert [line.split()[1] for line in lines if line.split()[:1] == ["b"]][1:] == ["return", "way"]


def test_the_table_fits_80_columns_with_large_numbers() -> None:
    rng = np.random.default_rng(0)
    many = {name: episodes(*rng.normal(-12345.6, 900.0, 20)) for name in ("reference", "another", "random")}
    lines = shown(many, measure="net_rotation")
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if line.split()[:2] in (["another", "return"], ["random", "return"])]
    assert all(row.count("[") == row.count("]") == 2 for row in rows), "an interval is broken over two lines"
