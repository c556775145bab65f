"""The documentation site: every page is in its navigation, and it builds without a warning."""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import offpolicy
from docs.site import reference
from offpolicy import cli
from offpolicy.config.schema import all_keys
from tests.documents import links

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PEERS = (DOCS / "peers.md").read_text()
ROW = re.compile(r"^\| \d+\. .*\|$", flags=re.MULTILINE)
ANSWERS = {"y", "p", "n", "–", "?"}
OURS = {"**y**", "**y†**", "**p**", "**n**"}


def peers() -> list[list[str]]:
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in ROW.findall(PEERS)]


def test_every_page_is_listed_once_in_the_index() -> None:
    listed = re.findall(r"^- \[[^\]]*\]\(([^)#]+\.md)\)", (DOCS / "README.md").read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    pages = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    assert {page for page in listed if "/" not in page} == pages


def test_the_options_are_all_there() -> None:
    shown = re.findall(r"^\| `([\w.]+)` \|", reference.options(), flags=re.MULTILINE)
    assert sorted(shown) == sorted(all_keys())


def test_the_commands_are_all_there() -> None:
    found = next(a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    assert re.findall(r"^## (.*)$", reference.commands(), flags=re.MULTILINE) == list(found.choices)


def test_the_api_reference_has_every_public_name() -> None:
    markers = re.findall(r"<!-- autodoc offpolicy: (.*) -->", (DOCS / "api.md").read_text())
    assert {name for names in markers for name in names.split()} >= {*offpolicy.__all__} - {"__version__"}


def test_the_api_reference_has_every_name_that_an_example_imports() -> None:
    on_page = set[tuple[str, str]]()
    for module, names in re.findall(r"<!-- autodoc (\S+): (.*) -->", (DOCS / "api.md").read_text()):
        on_page |= {(module, name) for name in names.split()}
    taken = set[tuple[str, str]]()
    for path in (ROOT / "examples").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("offpolicy."):
                taken |= {(node.module or "", alias.name) for alias in node.names}
    assert len(taken) > 10
    assert taken - on_page == set()


def test_every_row_of_the_peers_is_whole_and_numbered() -> None:
    assert [int(row[0].split(".")[0]) for row in peers()] == list(range(1, 94))
    for row in peers():
        assert len(row) == 12, row[0]
        assert set(row[1:10]) <= ANSWERS, row[0]
        assert row[10] in OURS, row[0]


def test_every_yes_and_partly_of_ours_says_where() -> None:
    assert [row[0] for row in peers() if row[10] != "**n**" and not links(row[11])] == []


def test_the_counts_in_the_text_are_those_of_the_table() -> None:
    count = Counter(row[10].strip("*") for row in peers())
    text = " ".join(PEERS.split())
    assert f"has {count['y'] + count['y†']} of 93, {count['y†']} of them never run on a GPU;" in text
    assert f"; {count['p']} partly, {count['n']} not." in text


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_asks_no_other_host(tmp_path: Path) -> None:
    site = tmp_path / "site"
    program = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    subprocess.run([*program, "-d", str(tmp_path / "cache"), "-c", "docs/site", ".", str(site)], cwd=ROOT, check=True)
    assert "url=README.html" in (site / "index.html").read_text()
    api = (site / "docs/api.html").read_text()
    assert 'id="offpolicy.train"' in api
    assert "autodoc" not in api
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)[^>]*?(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert loaded == [], f"{page.relative_to(site)} loads {loaded}"


@pytest.mark.slow
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        shutil.copy(ROOT / name, copy)
    for name in ("docs", "offpolicy"):
        shutil.copytree(ROOT / name, copy / name)
    with (copy / "docs/install.md").open("a") as page:
        page.write("\nSee [nothing](no_such_page.md).\n")
    program = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run(
        [*program, "-c", "docs/site", ".", str(tmp_path / "site")],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "no_such_page" in done.stderr
