"""Commands as they are typed: what they print, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from offpolicy.algos.registry import make_policy
from offpolicy.checkpoint import BestStore
from offpolicy.cli import main
from offpolicy.config.run_files import write_config
from offpolicy.config.schema import RunConfig
from offpolicy.types import EvalResult, SpaceSpec

Typed = Callable[..., str]


def run_with_best(run: Path, cfg: RunConfig, spec: SpaceSpec, trained_with: SpaceSpec | None = None) -> None:
    """Makes a run with a best policy of random weights, of env step 70, and no checkpoint."""
    run.mkdir()
    write_config(run, cfg, trained_with or spec)
    weights = {f"policy.{name}": t.numpy() for name, t in make_policy(cfg.algo, spec).state_dict().items()}
    BestStore(run).save(weights, EvalResult(70, 1.0, 0.0, 7.0, 1))


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """`printed("list", run, ...)`: stdout of a command that succeeds."""

    def run(*words: str | Path) -> str:
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Typed:
    """`refused("eval", run, ..., code=2)`: stderr of a command that ends with this code."""

    def run(*words: str | Path, code: int = 2) -> str:
        assert main([str(word) for word in words]) == code
        return capsys.readouterr().err

    return run
