"""The last screen fits a terminal of 24 rows and ends with commands that can be typed as they stand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from offpolicy.logger.console import shown_path
from offpolicy.logger.end_screen import MOST_ROWS, end_screen
from offpolicy.logger.record import RunHeader
from offpolicy.logger.summary import RunResult, build_summary
from offpolicy.types import EvalResult, Snapshot

HEADER = RunHeader(algo="sac", env_id="Pendulum-v1", seed=1, mode="alternate", total_timesteps=2000)
REASONS = {
    "completed": "2,000 env steps done",
    "interrupted": "stopped by a signal; checkpoint saved at env step 1,500",
    "failed": "learner 0: NumericsError: critic_loss is nan at update 900",
}
RUN = Path("runs/sac/Pendulum-v1/20261122-124100-s1")


def summary_of(snapshot: Snapshot, status: str = "completed", **result: Any) -> dict[str, Any]:
    return build_summary(snapshot, HEADER, RunResult(status=status, exit_code=0, reason=REASONS[status], **result))


def printed(summary: dict[str, Any], run: Path = RUN) -> list[str]:
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(end_screen(summary, run), crop=False)  # as the views do
    return [line.rstrip() for line in capture.get().rstrip("\n").split("\n")]


def commands(lines: list[str]) -> list[str]:
    first = next(index for index, line in enumerate(lines) if line.startswith("next"))
    return [line[6:] for line in lines[first:]]


RECORDS = '{"train/n_updates": 0}\n' + 9 * '{"train/n_updates": 9}\n'


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with everything that a run leaves, beside an older one; the working directory is above both."""
    monkeypatch.chdir(tmp_path)
    for place in (RUN, RUN.with_name("20261121-090000-s1")):
        place.mkdir(parents=True)
        for name in ("config.yaml", "metrics.jsonl", "events.out.tfevents.1", "train.log"):
            (place / name).write_text(RECORDS if name == "metrics.jsonl" else "{}\n")
        for step in (0, 1500):
            (place / f"checkpoints/step-{step:012d}").mkdir(parents=True)
    return RUN


def test_the_screen_of_a_full_run_fits_a_terminal(run: Path, make_snapshot: Any, evaluation: EvalResult) -> None:
    for status in REASONS:
        summary = summary_of(make_snapshot(1000), status, last_eval=evaluation)
        summary["bottleneck"] |= {"reason": "the learner " * 60, "advice": ["threads.learner=2 " * 60] * 5}
        lines = printed(summary)
        assert sum(-(-len(line) // 80) for line in lines) <= MOST_ROWS  # the terminal wraps long commands
        assert lines[0] == f"{status} after 2,000 env steps, 1,000 updates, 0:08"


def test_it_says_what_came_out_and_where_it_is(run: Path, make_snapshot: Any, evaluation: EvalResult) -> None:
    lines = printed(summary_of(make_snapshot(1000), last_eval=evaluation))
    assert "return      -150.2 +/- 80.5 over 10 episodes of evaluation" in lines
    assert f"directory   {run}" in lines
    assert any("Train " in line and " 6.1 " in line and " 70.9" in line for line in lines)
    assert any("Warm-up " in line and " 2.0 " in line and " 23.3" in line for line in lines)
    assert any(line.startswith("bottleneck  learner (train): ") for line in lines)
    alone = printed(summary_of(make_snapshot(1000), last_eval=evaluation._replace(episodes=1)))
    assert "return      -150.2 in one episode of evaluation" in alone  # it has no spread
    trained = printed(summary_of(make_snapshot(1000), training_return=-812.34))
    assert "return      -812.3 in the last episodes of training; none of evaluation" in trained
    never = printed(summary_of(make_snapshot(0), "interrupted"))  # it has learnt nothing: no zeros
    assert not any("0.0" in line or "Train" in line or "bottleneck" in line for line in never)


def test_a_completed_run_offers_more_episodes_and_more_steps(run: Path, make_snapshot: Any) -> None:
    assert commands(printed(summary_of(make_snapshot(1000)))) == [
        f"offpolicy eval {run} --episodes 20", f"offpolicy play {run} --video x.gif", f"offpolicy explain {run}",
        f"offpolicy compare {run.with_name('20261121-090000-s1')} {run}",
        f"offpolicy tensorboard {run.with_name('20261121-090000-s1')} {run}",
        f"offpolicy resume {run} total_timesteps=4000",
    ]  # fmt: skip


def test_a_failed_run_shows_the_cause_and_its_log_and_an_interrupted_one_offers_to_go_on(
    run: Path, make_snapshot: Any
) -> None:
    assert commands(printed(summary_of(make_snapshot(1000), "interrupted")))[0] == f"offpolicy resume {run}"
    lines = printed(summary_of(make_snapshot(1000), "failed"))
    assert lines[1] == f"because     {REASONS['failed']}"
    assert commands(lines)[:2] == [f"less {run}/train.log", f"offpolicy resume {run}"]


def test_nothing_is_offered_that_the_run_has_no_files_for(run: Path, make_snapshot: Any) -> None:
    lines = printed(summary_of(make_snapshot(1000)), Path("bare"))
    assert not any(line.startswith("next") for line in lines)
    (run / "checkpoints/step-000000001500").rmdir()
    typed = commands(printed(summary_of(make_snapshot(1000), "interrupted")))
    assert f"offpolicy resume {run}" in typed
    assert not [command for command in typed if command.startswith(("offpolicy eval", "offpolicy play"))]


def test_a_long_command_stays_one_line_that_can_be_pasted(
    tmp_path: Path, make_snapshot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("one two three " * 8)
    (run / "checkpoints/step-000000001500").mkdir(parents=True)
    typed = commands(printed(summary_of(make_snapshot(10)), run))
    assert f"offpolicy eval {shown_path(run)} --episodes 20" in typed


def test_a_deleted_working_directory_leaves_a_screen(
    tmp_path: Path, make_snapshot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = tmp_path / "here"
    here.mkdir()
    os.chdir(here)
    here.rmdir()
    assert shown_path(Path("runs/a b")) == "'runs/a b'"
    lines = printed(summary_of(make_snapshot(1000)))
    assert not any("warning" in line for line in lines)
    assert any(str(RUN) in line for line in lines)
