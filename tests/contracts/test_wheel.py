"""The built wheel is one package that trains anywhere: built, installed into a clean environment, run elsewhere.

The environment sees the dependencies of this one through a .pth file, so nothing is downloaded and the checkout itself
is out of sight.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SHIPPED = (
    *("offpolicy", "runners", "conf", "pyproject.toml", "README.md", "LICENSE"),
    *("Dockerfile", "CITATION.cff", "SECURITY.md", "constraints.txt"),
)


@dataclass(frozen=True, slots=True)
class Installed:
    """A virtual environment with the wheel in it, and an empty directory to work in."""

    home: Path
    cwd: Path

    def run(self, program: str, *args: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [str(self.home / "bin" / program), *args]
        return subprocess.run(
            command, cwd=self.cwd, env=environ, capture_output=True, text=True, timeout=timeout, check=False
        )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what goes into the distributions."""
    root = tmp_path_factory.mktemp("source")
    for name in SHIPPED:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, root / name)
        else:
            shutil.copy(REPOSITORY / name, root / name)
    return root


def build(kind: str, source: Path, out: Path) -> Path:
    """Builds the distribution of a kind, `wheel` or `sdist`."""
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(out), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = out.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    """The wheel, built from a checkout."""
    return build("wheel", source, source / "dist")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in its own environment."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True, with_pip=False)
    place = Path(sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)}))
    # A .pth file adds the directory but not the .pth files in it, so an editable install of the checkout stays unseen.
    (place / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [sys.executable, "-m", "pip", "--python", str(home / "bin/python"), "install", "--no-deps", "--no-index"]
    result = subprocess.run([*command, str(wheel)], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return Installed(home, tmp_path_factory.mktemp("elsewhere"))


@pytest.mark.promise("wheel")
def test_the_wheel_holds_one_package_with_all_of_conf_and_runners_inside(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"offpolicy"}
    files = [*(REPOSITORY / "conf").rglob("*.yaml"), *(REPOSITORY / "runners").rglob("*.py")]
    inside = {f"offpolicy/{path.relative_to(REPOSITORY)}" for path in files}
    assert (inside | {"offpolicy/py.typed", "offpolicy/logger/metrics.toml"}) - set(names) == set()
    assert [name for name in names if {"test", "tests", "cache"} & set(name.split("/"))] == []


@pytest.mark.slow
def test_the_wheel_of_the_sdist_is_that_of_the_checkout(wheel: Path, source: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", source, tmp_path)) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert {"Dockerfile", "CITATION.cff", "SECURITY.md"} <= {path.name for path in unpacked.iterdir()}
    again = build("wheel", unpacked, tmp_path / "dist")
    first, second = (
        {entry.filename: entry.CRC for entry in zipfile.ZipFile(path).infolist() if "RECORD" not in entry.filename}
        for path in (wheel, again)
    )
    assert first == second


@pytest.mark.slow
def test_the_installed_commands_are_of_the_package_alone_and_refuse_a_wrong_configuration(installed: Installed) -> None:
    found = installed.run("python", "-c", "import offpolicy, offpolicy.runners; print(offpolicy.__file__)")
    assert found.stdout.startswith(str(installed.home)), found.stderr
    for name in ("runners", "conf"):
        assert f"No module named '{name}'" in installed.run("python", "-c", f"import {name}").stderr
    version = installed.run("offpolicy", "--version")
    assert installed.run("python", "-m", "offpolicy", "--version").stdout == version.stdout != ""
    result = installed.run("offpolicy", "train", "algo=sca")
    assert (result.returncode, list(installed.cwd.iterdir())) == (2, [])
    assert "allowed one of appo, flashsac, hora, sac, td3" in result.stderr


@pytest.mark.slow
@pytest.mark.mp
@pytest.mark.promise("wheel")
def test_the_installed_command_trains_outside_the_checkout(installed: Installed) -> None:
    budget = ["total_timesteps=500", "algo.learning_starts=100", "algo.hidden_dims=[32,32]", "algo.batch_size=32"]
    options = ["eval.episodes=1", "device=cpu", "run_dir=run"]
    result = installed.run("offpolicy", "train", *budget, *options, timeout=110)
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((installed.cwd / "run/summary.json").read_text())
    assert (summary["status"], summary["exit_code"], summary["env_steps"]) == ("completed", 0, 500)
