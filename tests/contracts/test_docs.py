"""The documents: paths of calls that exist, commands that are accepted, links that lead somewhere, tables that hold."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from offpolicy import cli
from offpolicy.config.overrides import load_config, load_values
from offpolicy.config.schema import RESUMABLE
from tests.documents import anchors, blocks, commands, is_template, links, made

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
OFFPOLICY = REPOSITORY / "offpolicy"
NAMED = re.compile(r"`(?:offpolicy/)?(\w+)/`")
STEP = re.compile(r"`([\w/]+\.py):([\w.]+)`")
PAGES = [*sorted(DOCS.rglob("*.md")), *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
FOLLOWED = [REPOSITORY / "README.md", DOCS / "tutorial.md"]  # typed line by line by newcomers
MAX_WIDTH = 100  # characters of a line; tables, code and long links cannot be wrapped
RELIABILITY = (DOCS / "reliability.md").read_text()
COLUMNS = ["what happens", "what the run does", "saved", "exit", "test", "seeded bug"]


def defined_names(path: Path) -> set[str]:
    """Functions and classes of a module, and methods as `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return names


def test_the_page_of_the_architecture_names_code_that_exists_and_every_package() -> None:
    page = (DOCS / "architecture.md").read_text()
    steps = STEP.findall(page)
    assert len(steps) >= 10
    for file, name in steps:
        assert name in defined_names(OFFPOLICY / file), f"{file}:{name}"
    packages = {path.parent.name for path in OFFPOLICY.glob("*/__init__.py")}
    named = {name for row in page.splitlines() if row.startswith("|") for name in NAMED.findall(row)}
    assert packages - named == set()
    files = re.findall(r"`([\w/]+/\w+\.py)`", page)
    assert [file for file in files if not any((root / file).is_file() for root in (OFFPOLICY, REPOSITORY))] == []


def prose(path: Path) -> list[str]:
    """The lines of a document that can be wrapped."""
    lines, is_code = [], False
    for line in path.read_text().splitlines():
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith(("|", "    ", "!")) and "](" not in line[MAX_WIDTH - 40 :]:
            lines.append(line)
    return lines


@pytest.mark.slow
def test_lines_fit_and_the_first_pages_are_short() -> None:
    assert {
        path.name: long for path in PAGES if (long := [line for line in prose(path) if len(line) > MAX_WIDTH])
    } == {}
    assert len((DOCS / "panel.md").read_text().splitlines()) <= 60
    assert sum(len(path.read_text().splitlines()) for path in DOCS.rglob("*.md")) <= 5000
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 190


def check_accepted(words: list[str]) -> None:
    """Fails unless the command line accepts the words after `offpolicy`. Nothing runs.

    The configuration of a run is written: a later command may start from it.
    """
    if words in (["--help"], ["--version"]):
        return
    arguments = cli.parser_of(words).parse_intermixed_args(words[1:])
    if words[0] == "train" and "--help" not in words:
        config = load_config(arguments.overrides)
        if config.run_dir and not Path(config.run_dir).is_absolute():
            Path(config.run_dir).mkdir(parents=True, exist_ok=True)
            (Path(config.run_dir) / "config.yaml").write_text(yaml.safe_dump(config.to_mapping()))
    if words[0] == "resume":
        load_values([word for word in arguments.overrides if "=" in word])


@pytest.mark.slow
def test_every_command_of_a_page_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "runs/one"  # which every name of a run is taken for
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump(load_config(["run_dir=one"]).to_mapping()))
    monkeypatch.chdir(tmp_path)
    for module in ("options", "explain", "prune", "reproduce"):
        monkeypatch.setattr(f"offpolicy.commands.{module}.existing_run", lambda word: run)
    for path in PAGES:
        for program, *words in commands(path.read_text()) if blocks(path.read_text()) else ():
            if not is_template(words):
                for typed in made(words) if program == "make" else [words]:
                    check_accepted(typed)


def test_what_newcomers_type_has_no_placeholder_and_names_runs_that_an_earlier_command_made() -> None:
    for path in FOLLOWED:
        shown = list(commands(path.read_text()))
        assert len(shown) >= 8
        assert [words for words in shown if is_template(words)] == []
        made_runs: set[str] = set()
        for words in shown:
            made_runs |= {word.removeprefix("run_dir=") for word in words if word.startswith("run_dir=")}
            assert {run for word in words for run in re.findall(r"runs/\w+", word)} <= made_runs, words


def test_links_lead_to_pages_and_headings_that_exist() -> None:
    for path in PAGES:
        for link in links(path.read_text()):
            name, _, heading = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            assert target.exists(), f"{path.name}: {link}"
            assert not heading or heading in anchors(target.read_text()), f"{path.name}: {link}"


def test_every_page_is_listed_once_in_the_index() -> None:
    listed = re.findall(r"^- \[[^\]]*\]\(([^)#]+\.md)\)", (DOCS / "README.md").read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    pages = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    assert {page for page in listed if "/" not in page} == pages


def table(text: str, first: str) -> list[list[str]]:
    """The cells of the rows that begin as `first` says."""
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(rf"^{first}.*\|$", text, re.M)]


def test_every_row_of_what_may_go_wrong_names_a_test_that_exists() -> None:
    rows = table(RELIABILITY.partition("\n\n|")[2].partition("\n\n")[0], r"\|")[1:]
    assert f"| {' | '.join(COLUMNS)} |" in RELIABILITY
    assert len(rows) > 30
    files = list((REPOSITORY / "tests").rglob("test_*.py"))
    for row in rows:
        assert len(row) == len(COLUMNS), row
        module, name = row[4].strip("`").split("::")
        found = [path for path in files if path.stem == module and f"\ndef {name}(" in path.read_text()]
        assert found, f"{row[0]}: no {row[4]}"
        is_real = found[0].parent.name in ("processes", "chaos")
        assert is_real or "†" in row[0] + row[1], f"{row[0]}: {module} is a unit test; mark the row with †"
        assert len(row[5]) > 3, "no seeded bug: what was broken to see that the test fails?"


def test_what_a_resume_may_change_is_listed_in_full() -> None:
    page = RELIABILITY.partition("## What a resume may change")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z_.]+)`", page))
    assert [key for key in RESUMABLE if key not in named and key.partition(".")[0] not in named] == []


@pytest.mark.slow
def test_the_rows_of_the_peers_are_whole_and_counted_and_say_where() -> None:
    text = (DOCS / "peers.md").read_text()
    rows = table(text, r"\| \d+\. ")
    assert [int(row[0].split(".")[0]) for row in rows] == list(range(1, 94))
    for row in rows:
        assert len(row) == 12, row[0]
        assert set(row[1:10]) <= {"y", "p", "n", "–", "?"}, row[0]
        assert row[10] in ("**y**", "**y†**", "**p**", "**n**"), row[0]
        assert row[10] == "**n**" or links(row[11]), row[0]
    count = Counter(row[10].strip("*") for row in rows)
    said = " ".join(text.split())
    assert f"has {count['y'] + count['y†']} of 93, {count['y†']} of them never run on a GPU;" in said
    assert f"; {count['p']} partly, {count['n']} not." in said
