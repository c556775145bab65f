"""What is published beside the code: workflows, templates, image and citation, with one version and pinned actions."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from offpolicy import __version__

REPOSITORY = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
FORMS = sorted(path for path in (REPOSITORY / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
PINNED = re.compile(r"[\w.-]+/[\w./-]+@v\d+\.\d+\.\d+")


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(path).values():
        yield from job["steps"]


def supported() -> list[str]:
    """The versions of Python that the package says it supports."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r"Python :: 3\.\d+$", each)]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE))


def test_the_workflows_are_those_of_a_release() -> None:
    assert {path.stem for path in WORKFLOWS} == {"test", "wheel", "docs", "nightly", "release"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_version(path: Path) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used
    assert [action for action in used if not PINNED.fullmatch(action)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_and_ends_in_time(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    assert all(0 < job["timeout-minutes"] <= 360 for job in jobs(path).values())
    rights = [job["permissions"] for job in jobs(path).values() if "permissions" in job]
    assert rights in ([], [{"contents": "read", "id-token": "write"}])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_make_target_of_a_workflow_exists(path: Path) -> None:
    used = {target for step in steps(path) for target in re.findall(r"^make ([a-z-]+)", step.get("run", ""), re.M)}
    assert used <= make_targets()


@pytest.mark.parametrize(("name", "job"), [("test", "test"), ("wheel", "install")])
def test_every_supported_python_is_tested(name: str, job: str) -> None:
    path = REPOSITORY / f".github/workflows/{name}.yml"
    assert jobs(path)[job]["strategy"]["matrix"]["python"] == supported()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_asks_something(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys()
    assert any(field.get("validations", {}).get("required") for field in form["body"])
    assert len({field["id"] for field in form["body"]}) == len(form["body"])


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == __version__.removesuffix(".dev0")


@pytest.mark.parametrize("name", ["wheel", "release"])
def test_the_step_that_holds_a_tag_against_the_version_accepts_this_one_alone(name: str) -> None:
    (check,) = [
        step["run"] for step in steps(REPOSITORY / f".github/workflows/{name}.yml") if "tag is" in step.get("name", "")
    ]
    for tag, code in ((f"v{__version__}", 0), ("v99.0.0", 1), (__version__, 1)):
        result = subprocess.run(
            ["bash", "-c", check], cwd=REPOSITORY, env={"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"}, check=False
        )
        assert result.returncode == code, tag


def test_the_image_copies_what_is_there_and_what_it_may() -> None:
    lines = (REPOSITORY / "Dockerfile").read_text().splitlines()
    sources = {
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    }
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert sources == allowed
    assert [name for name in sources if not (REPOSITORY / name).exists()] == []


def test_the_image_passes_the_linter() -> None:
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
    if linter is None:
        pytest.skip("hadolint is not installed")
    result = subprocess.run(
        [linter, "Dockerfile"], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stdout
