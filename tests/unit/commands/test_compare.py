"""The comparison as it is printed and written: tables that fit, files that stand alone, refusals that help."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Callable
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


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_the_tables_fit_80_columns_however_many_runs(make_run: MakeRun, printed: Typed, count: int) -> None:
    runs = [make_run(f"a-rather-long-name-{index}", train=10.0 + index) for index in range(count)]
    lines = printed("compare", *runs).splitlines()
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


FAIL_ON = "perf/steps_per_sec<-5%"


@pytest.mark.parametrize(
    ("train", "shares", "conditions", "code", "outcomes"),
    [
        (20.0, {}, [FAIL_ON], 1, ["failed"]),
        (10.0, {}, [FAIL_ON], 0, ["passed"]),
        (20.0, {"cpu/collector_descheduled_pct": 30.0}, [FAIL_ON], EXIT_UNJUDGED, ["not judged"]),
        (10.0, {}, [FAIL_ON, "perf/samples_per_sec<-5%"], EXIT_UNJUDGED, ["passed", "not judged"]),
        (20.0, {}, ["perf/samples_per_sec<-5%", FAIL_ON], 1, ["not judged", "failed"]),
    ],
)
def test_conditions_decide_the_exit_code(  # noqa: PLR0913  # the columns of the table
    make_run: MakeRun,
    capsys: pytest.CaptureFixture[str],
    train: float,
    shares: dict[str, float],
    conditions: list[str],
    code: int,
    outcomes: list[str],
) -> None:
    runs = [str(make_run("one")), str(make_run("two", train=train, extra=shares))]
    options = [word for condition in conditions for word in ("--fail-on", condition)]
    assert main(["compare", *runs, *options]) == code
    lines = capsys.readouterr().out.splitlines()[-len(conditions) :]
    assert [line.split(":")[:2] for line in lines] == [[o, f" {c}"] for o, c in zip(outcomes, conditions, strict=True)]


def test_a_condition_that_is_none_is_refused_before_a_run_is_read(refused: Typed) -> None:
    problem = refused("compare", "no-such-run", "nor-this", "--fail-on", "perf/steps_per_sec=-5%")
    (line,) = problem.splitlines()[1:]
    assert line.startswith("  --fail-on: got 'perf/steps_per_sec=-5%', allowed KEY<CHANGE or KEY>CHANGE")


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


def test_a_file_that_cannot_be_written_is_refused_first(tmp_path: Path, refused: Typed) -> None:
    assert "--png: got" in refused("compare", "no-such-run", "nor-this", "--png", tmp_path / "nowhere" / "x.png")


def test_a_picture_without_matplotlib_is_refused_first_with_the_extra(make_run: MakeRun, tmp_path: Path) -> None:
    words = [str(make_run("one")), str(make_run("two")), "--png", str(tmp_path / "x.png")]
    code = "import sys; sys.modules['matplotlib'] = None; from offpolicy.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "compare", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'offpolicy[plot]'" in done.stderr


def test_the_table_needs_no_torch_and_no_matplotlib(make_run: MakeRun) -> None:
    words = [str(make_run("one")), str(make_run("two"))]
    code = (
        "import sys; sys.modules['torch'] = sys.modules['matplotlib'] = None; from offpolicy.cli import main;"
        " sys.exit(main(['compare', *sys.argv[1:]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=REPOSITORY, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
