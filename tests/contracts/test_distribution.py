"""What is published beside the code: workflows, templates, image and citation, with one version and pinned actions."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

from offpolicy import __version__

REPOSITORY = Path(__file__).resolve().parents[2]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (REPOSITORY / ".github/workflows").glob("*.yml")}
PINNED = re.compile(r"[\w.-]+/[\w./-]+@v\d+\.\d+\.\d+")


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in WORKFLOWS[name]["jobs"].values() for step in job["steps"]]


def test_the_workflows_may_only_read_end_in_time_and_pin_their_actions() -> None:
    assert WORKFLOWS.keys() == {"test", "wheel", "docs", "nightly", "release"}
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {"contents": "read"}
        assert all(0 < job["timeout-minutes"] <= 360 for job in workflow["jobs"].values())
        rights = [job["permissions"] for job in workflow["jobs"].values() if "permissions" in job]
        assert rights in ([], [{"contents": "read", "id-token": "write"}])
        assert [step["uses"] for step in steps(name) if "uses" in step and not PINNED.fullmatch(step["uses"])] == []


def test_every_make_target_of_a_workflow_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE))
    for name in WORKFLOWS:
        used = {target for step in steps(name) for target in re.findall(r"^make ([a-z-]+)", step.get("run", ""), re.M)}
        assert used <= targets


def test_every_supported_python_is_tested() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    supported = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r"Python :: 3\.\d+$", each)]
    assert supported
    (of_a_change,) = [
        step["with"]["python-version"] for step in steps("test") if "setup-python" in step.get("uses", "")
    ]
    others = WORKFLOWS["nightly"]["jobs"]["pythons"]["strategy"]["matrix"]["python"]
    assert [of_a_change, *others] == supported
    assert WORKFLOWS["wheel"]["jobs"]["install"]["strategy"]["matrix"]["python"] == supported


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert citation["version"] == __version__.removesuffix(".dev0")


def test_the_step_that_holds_a_tag_against_the_version_accepts_this_one_alone() -> None:
    for name in ("wheel", "release"):
        (check,) = [step["run"] for step in steps(name) if "tag is" in step.get("name", "")]
        for tag, code in ((f"v{__version__}", 0), ("v99.0.0", 1), (__version__, 1)):
            environ = {"GITHUB_REF_NAME": tag, "PATH": "/usr/bin:/bin"}
            assert subprocess.run(["bash", "-c", check], cwd=REPOSITORY, env=environ, check=False).returncode == code


def test_the_image_copies_what_is_there_and_what_it_may() -> None:
    lines = (REPOSITORY / "Dockerfile").read_text().splitlines()
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    sources = {word for words in copies for word in words}
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert sources == allowed
    assert [name for name in sources if not (REPOSITORY / name).exists()] == []
