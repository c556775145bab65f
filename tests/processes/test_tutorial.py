"""docs/tutorial.md, typed as it stands: every block runs, and what the page says of the runs is true."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, Traces
from tests.documents import blocks

pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(1500)]

PAGE = REPOSITORY / "docs/tutorial.md"
MARK = "== block"  # printed before each block, with its number
PROGRAM = f"#!{sys.executable}\nimport sys\nfrom offpolicy.cli import main\nsys.exit(main())\n"
CHECKED = re.compile(r"runs/slow did \d+ env steps/s .* predicted \d+ for 'collect.mode=overlap'; this run did \d+")
TRIAL = re.compile(r"s  trial (\d): return (-[\d,.]+)")
RUNS = ("slow", "overlap", "four")


@dataclass(frozen=True, slots=True)
class Followed:
    """The page as somebody followed it: what each block printed, and the directory that it left."""

    outputs: list[str]
    directory: Path

    def said(self, command: str) -> str:
        """Returns what the block with `command` printed."""
        shown = [block.text for block in blocks(PAGE.read_text()) if block.language == "sh"]
        (index,) = [index for index, text in enumerate(shown) if command in text]
        return self.outputs[index]

    def summary(self, run: str) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.directory / "runs" / run / "summary.json").read_text())
        return summary

    def rate(self, run: str, key: str) -> float:
        return float(self.summary(run)["rates"][key])


def follow(home: Path) -> Followed:
    """Runs the blocks in one shell that ends with the first command that fails."""
    traces = Traces()
    (home / "bin").mkdir()
    (home / "bin/offpolicy").write_text(PROGRAM)
    (home / "bin/offpolicy").chmod(0o755)
    shown = [block.text for block in blocks(PAGE.read_text()) if block.language == "sh"]
    script = "".join(f"echo '{MARK} {index}'\n{text}" for index, text in enumerate(shown))
    environ = {
        **os.environ, **traces.environ,
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY),
    }  # fmt: skip
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=home, env=environ, timeout=1400, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    traces.assert_none()
    assert result.returncode == 0, result.stdout[-3000:]
    outputs = re.split(rf"^{MARK} \d+\n", result.stdout, flags=re.MULTILINE)[1:]
    assert len(outputs) == len(shown)
    return Followed(outputs, home / "tutorial")


def check_every_run_of_the_page_learnt_to_its_end(followed: Followed) -> None:
    assert {path.name for path in (followed.directory / "runs").iterdir()} == {*RUNS, "latest"}
    for run in RUNS:
        assert followed.summary(run)["status"] == "completed"
        assert followed.summary(run)["env_steps"] == 7000
        assert followed.summary(run)["eval"]["mean_reward"] > -900, "a policy that learnt nothing has about -1200"


def check_each_fix_makes_the_run_faster(followed: Followed) -> None:
    rates = [followed.rate(run, "steps_per_sec") for run in RUNS]
    assert rates == sorted(rates)
    assert rates[2] > 1.5 * rates[0]


def check_the_bottleneck_moves_from_the_collector_to_the_learner(followed: Followed) -> None:
    ratios = [followed.rate(run, "collector_capacity") / followed.rate(run, "learner_capacity") for run in RUNS]
    assert ratios[2] > 1.3 * ratios[0]


def check_the_prediction_is_held_against_the_run(followed: Followed) -> None:
    assert CHECKED.search(" ".join(followed.said("--before runs/slow").split()))
    shown = " ".join(PAGE.read_text().split())
    assert CHECKED.search(shown), "the page shows the line"


def check_the_comparison_names_all_runs(followed: Followed) -> None:
    said = followed.said("offpolicy compare")
    assert "overlap, four against slow" in said
    assert "thru, env steps/s" in said


def check_the_policies_are_evaluated_on_the_same_episodes(followed: Followed) -> None:
    said = followed.said("offpolicy eval")
    assert "slow" in said
    assert "four" in said


def check_the_policy_is_exported_and_played(followed: Followed) -> None:
    said = followed.said("offpolicy export")
    assert "differs by at most" in said
    assert "swing.gif: 201 pictures" in said
    assert json.loads((followed.directory / "policy_contract.json").read_text())["files"]


def check_the_sweep_finds_better_settings_than_the_defaults(followed: Followed) -> None:
    said = followed.said("offpolicy sweep")
    returns = {int(trial): float(one.replace(",", "")) for trial, one in TRIAL.findall(said)}
    assert sorted(returns) == [0, 1, 2, 3]
    assert max(returns.values()) > returns[0] + 300, "the first trial has the defaults"


def test_the_tutorial_works_as_it_stands(tmp_path: Path) -> None:
    followed = follow(tmp_path)
    check_every_run_of_the_page_learnt_to_its_end(followed)
    check_each_fix_makes_the_run_faster(followed)
    check_the_bottleneck_moves_from_the_collector_to_the_learner(followed)
    check_the_prediction_is_held_against_the_run(followed)
    check_the_comparison_names_all_runs(followed)
    check_the_policies_are_evaluated_on_the_same_episodes(followed)
    check_the_policy_is_exported_and_played(followed)
    check_the_sweep_finds_better_settings_than_the_defaults(followed)
