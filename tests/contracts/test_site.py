"""The documentation site: its references are whole, and it builds without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import offpolicy
from docs.site import reference
from offpolicy.config.schema import specs
from offpolicy.logger.metrics import METRICS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


def test_the_references_have_every_option_and_every_public_name() -> None:
    shown = re.findall(r"^\| `([\w.]+)` \|", reference.options(), flags=re.MULTILINE)
    assert sorted(shown) == sorted(specs())
    assert all(f"| `{key}` |" in reference.metrics() for key in METRICS)
    markers = re.findall(r"<!-- autodoc offpolicy: (.*) -->", (ROOT / "docs/site/reference.md").read_text())
    assert {name for names in markers for name in names.split()} >= {*offpolicy.__all__} - {"__version__"}


def test_the_site_builds_without_a_warning_and_asks_no_other_host(tmp_path: Path) -> None:
    site = tmp_path / "site"
    program = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    subprocess.run([*program, "-d", str(tmp_path / "cache"), "-c", "docs/site", ".", str(site)], cwd=ROOT, check=True)
    assert "url=README.html" in (site / "index.html").read_text()
    api = (site / "docs/site/reference.html").read_text()
    assert 'id="offpolicy.train"' in api
    assert "autodoc" not in api
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)[^>]*?(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert loaded == [], f"{page.relative_to(site)} loads {loaded}"
