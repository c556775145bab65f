"""Who may import whom, as written in pyproject.toml, and proof that each rule catches its violation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
RUNNERS_ON_TOP = "nothing imports runners"
LAYERS = "layers"


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "200", "NO_COLOR": "1"}
    command = [sys.executable, "-c", LINT]
    return subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the code, to be broken."""
    for name in ("offpolicy", "runners"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_code_keeps_to_its_layers() -> None:
    result = lint_imports(REPOSITORY)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("offpolicy/nets/seeded.py", "import offpolicy.algos", LAYERS),
        ("offpolicy/timing/seeded.py", "import offpolicy.nets", LAYERS),
        ("offpolicy/types.py", "import offpolicy.config.schema", LAYERS),
        ("offpolicy/seeded.py", "", LAYERS),
        ("offpolicy/envs/seeded.py", "import runners.train", RUNNERS_ON_TOP),
        ("offpolicy/algos/seeded.py", "import offpolicy.timing.ledger", "algos import nets and leaves only"),
        ("offpolicy/replay/seeded.py", "import offpolicy.logger", "replay never imports the logger"),
        ("offpolicy/logger/seeded.py", "import torch", "the logger runs in the supervisor, which has no torch"),
        ("offpolicy/collect/seeded.py", "import omegaconf", "hydra and omegaconf stay in offpolicy.config.overrides"),
        ("runners/seeded.py", "import hydra", "hydra and omegaconf stay in offpolicy.config.overrides"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(checkout: Path, module: str, line: str, contract: str) -> None:
    with (checkout / module).open("a") as file:
        file.write(f"\n{line}\n")
    result = lint_imports(checkout)
    broken = [text for text in result.stdout.splitlines() if " BROKEN" in text]
    assert result.returncode == 1, result.stdout + result.stderr
    assert any(text.startswith(contract) for text in broken), result.stdout


@pytest.mark.parametrize(
    "package", ["offpolicy.logger", "offpolicy.config.schema", "offpolicy.cli", "offpolicy.config.overrides"]
)
def test_the_supervisors_modules_load_without_torch(package: str) -> None:
    code = (
        "import importlib, pkgutil, sys\n"
        f"package = importlib.import_module('{package}')\n"
        "for found in pkgutil.iter_modules(getattr(package, '__path__', [])):\n"
        f"    importlib.import_module('{package}.' + found.name)\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    assert subprocess.run([sys.executable, "-c", code], env=environ, timeout=60, check=False).returncode == 0
