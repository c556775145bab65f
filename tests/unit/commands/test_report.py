"""`offpolicy report`: the file that it writes, and where it refuses to."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.cli import main
from offpolicy.commands.report import report
from offpolicy.errors import ConfigError
from tests.unit.analysis.test_reported_run import recorded_run


def test_the_page_is_written_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, html = recorded_run(tmp_path / "run"), tmp_path / "report.html"
    assert main(["report", f"a={run}", f"--html={html}"]) == 0
    assert html.read_text().startswith("<!doctype html>")
    assert capsys.readouterr().out.startswith(f"written: {html} (1 run, ")


@pytest.mark.parametrize("name", ["missing/report.html", "."])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="--html: got .*, allowed a file in a directory that exists"):
        report([str(tmp_path / "no run")], tmp_path / name)
