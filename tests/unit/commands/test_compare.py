"""The comparison as it is printed and written: tables that fit, files that stand alone, refusals that help."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
from PIL import Image

from offpolicy.cli import main
from offpolicy.errors import EXIT_UNJUDGED
from tests.unit.commands.conftest import Typed

MakeRun = Callable[..., Path]
REPOSITORY = Path(__file__).resolve().parents[3]


def test_each_row_has_both_values_the_change_with_its_interval_and_a_verdict(make_run: MakeRun, printed: Typed) -> None:
    lines = printed("compare", make_run("one"), make_run("two", train=20.0)).splitlines()
    (train,) = [line for line in lines if line.startswith("Train ")]
    assert re.fullmatch(r"Train +(9|10)\.\d+ +(19|20)\.\d+ +\+\d+% \[\+\d+, \+\d+\] +slower ?", train)


def test_the_tables_fit_80_columns_however_many_runs(make_run: MakeRun, printed: Typed) -> None:
    runs = [make_run(f"a-rather-long-name-{index}", train=10.0 + index) for index in range(6)]
    for count in (2, 3, 6):
        lines = printed("compare", *runs[:count]).splitlines()
        assert max(map(len, lines)) <= 80
        verdicts = [word for line in lines if line.startswith("Train ") for word in line.split() if word == "slower"]
        assert len(verdicts) == count - 1


def test_a_run_without_its_cores_is_named_with_its_shares(make_run: MakeRun, printed: Typed) -> None:
    busy = {"cpu/learner_descheduled_pct": 87.12, "cpu/collector_descheduled_pct": 2.3}
    lines = printed("compare", make_run("one"), make_run("two", train=20.0, extra=busy)).splitlines()
    (train,) = [line for line in lines if line.startswith("Train ")]
    assert train.split()[-1] == "busy"
    text = " ".join(" ".join(lines).split())
    assert "busy: two was without a core for learner 87.1 %, collector 2.3 % of its wall" in text
    assert max(map(len, lines)) <= 80


def test_other_versions_are_named_above_the_verdicts(make_run: MakeRun, printed: Typed, tmp_path: Path) -> None:
    runs = [make_run("one"), make_run("two", train=20.0)]
    for path, torch in zip(runs, ("2.10", "2.13"), strict=True):
        versions = {"torch": torch, "mujoco": "3.17", "gymnasium": None}
        (path / "summary.json").write_text(json.dumps({"versions": versions}))
    page, text = tmp_path / "page.html", tmp_path / "page.md"
    out = printed("compare", *runs, "--markdown", text, "--html", page)
    for shown in (out, text.read_text(), unescape(page.read_text())):
        assert shown.count("2.13") == 1
        assert 0 < shown.index("differs: torch 2.10 -> 2.13") < shown.index("Train")
    same = [runs[0], make_run("three")]
    assert "differs" not in printed("compare", *same)


FAIL_ON = "perf/steps_per_sec<-5%"


def test_conditions_decide_the_exit_code(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    runs = {name: str(make_run(name, train=train)) for name, train in (("one", 10.0), ("same", 10.0), ("slow", 20.0))}
    runs["busy"] = str(make_run("busy", train=20.0, extra={"cpu/collector_descheduled_pct": 30.0}))
    unknown = "perf/samples_per_sec<-5%"
    for other, conditions, code, outcomes in (
        ("slow", [FAIL_ON], 1, ["failed"]),
        ("same", [FAIL_ON], 0, ["passed"]),
        ("busy", [FAIL_ON], EXIT_UNJUDGED, ["not judged"]),
        ("same", [FAIL_ON, unknown], EXIT_UNJUDGED, ["passed", "not judged"]),
        ("slow", [unknown, FAIL_ON], 1, ["not judged", "failed"]),
    ):
        options = [word for condition in conditions for word in ("--fail-on", condition)]
        assert main(["compare", runs["one"], runs[other], *options]) == code
        lines = capsys.readouterr().out.splitlines()[-len(conditions) :]
        expected = [[outcome, f" {condition}"] for outcome, condition in zip(outcomes, conditions, strict=True)]
        assert [line.split(":")[:2] for line in lines] == expected


def test_wrong_conditions_and_files_are_refused_before_a_run_is_read(tmp_path: Path, refused: Typed) -> None:
    problem = refused("compare", "no-such-run", "nor-this", "--fail-on", "perf/steps_per_sec=-5%")
    (line,) = problem.splitlines()[1:]
    assert line.startswith("  --fail-on: got 'perf/steps_per_sec=-5%', allowed KEY<CHANGE or KEY>CHANGE")
    assert "--png: got" in refused("compare", "no-such-run", "nor-this", "--png", tmp_path / "nowhere" / "x.png")


def test_the_files_hold_the_tables_and_the_picture(make_run: MakeRun, tmp_path: Path, printed: Typed) -> None:
    files = {"png": tmp_path / "c.png", "markdown": tmp_path / "c.md", "html": tmp_path / "c.html"}
    options = [word for name, file in files.items() for word in (f"--{name}", file)]
    printed("compare", make_run("one"), make_run("a|b<i>", train=20.0), *options)
    with Image.open(files["png"]) as image:
        assert (image.format, image.size > (500, 500)) == ("PNG", True)
    assert "![time per iteration and learning curves](c.png)" in files["markdown"].read_text()
    page = files["html"].read_text()
    (encoded,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert base64.b64decode(encoded) == files["png"].read_bytes()
    assert "a|b&lt;i&gt;" in page
    assert "<i>" not in page
    assert not re.search(r'(src|href)="(?!data:)', page), "a page that needs something else"


def test_the_table_needs_no_torch_and_no_matplotlib_and_a_picture_names_its_extra(
    make_run: MakeRun, tmp_path: Path
) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['matplotlib'] = None; from offpolicy.cli import main;"
        " sys.exit(main(['compare', *sys.argv[1:]]))"
    )
    command = [sys.executable, "-c", code, str(make_run("one")), str(make_run("two"))]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    command += ["--png", str(tmp_path / "x.png")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'offpolicy[plot]'" in done.stderr
