"""The documentation site: every page is in its navigation, and it builds without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_every_page_is_listed_once_in_the_index() -> None:
    listed = re.findall(r"^- \[[^\]]*\]\(([^)#]+\.md)\)", (DOCS / "README.md").read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    pages = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    assert {page for page in listed if "/" not in page} == pages


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
