"""The last screen fits a terminal of 24 rows and ends with commands that can be typed as they stand."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from offpolicy import cli
from offpolicy.analysis.runs import MIN_RECORDS
from offpolicy.logger.console import shown_path
from offpolicy.logger.end_screen import COMPARABLE, MOST_ROWS, end_screen, percentages
from offpolicy.logger.record import RunHeader
from offpolicy.logger.summary import RunResult, build_summary
from offpolicy.timing.virtual_speedup import Measured
from offpolicy.types import EvalResult, Snapshot

HEADER = RunHeader(algo="sac", env_id="Pendulum-v1", seed=1, mode="alternate", total_timesteps=2000)
REASONS = {
    "completed": "2,000 env steps done",
    "interrupted": "stopped by a signal; checkpoint saved at env step 1,500",
    "failed": "learner 0: NumericsError: critic_loss is nan at update 900",
}
RUN = Path("runs/sac/Pendulum-v1/20261122-124100-s1")
MakeRun = Callable[..., Path]


def summary_of(snapshot: Snapshot, status: str = "completed", **result: Any) -> dict[str, Any]:
    return build_summary(snapshot, HEADER, RunResult(status=status, exit_code=0, reason=REASONS[status], **result))


def printed(summary: dict[str, Any], run: Path = RUN, width: int = 80) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(end_screen(summary, run), crop=False)  # as the views do
    return [line.rstrip() for line in capture.get().rstrip("\n").split("\n")]


def commands(lines: list[str]) -> list[str]:
    first = next(index for index, line in enumerate(lines) if line.startswith("next"))
    return "\n".join(line[6:] for line in lines[first:]).replace("\\\n", "").split("\n")


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


@pytest.mark.parametrize("status", list(REASONS))
def test_the_screen_of_a_full_run_fits_a_terminal(
    run: Path, make_snapshot: Any, evaluation: EvalResult, status: str
) -> None:
    gains = {"train": {"50": [1.4, 1.5]}, "env_step": {"50": [1.02, 1.02]}}
    summary = summary_of(make_snapshot(1000), status, last_eval=evaluation, virtual_speedup=Measured(100.0, gains))
    summary["bottleneck"] |= {"reason": "the learner " * 60, "advice": ["threads.learner=2 " * 60] * 5}
    lines = printed(summary)
    assert len(lines) <= MOST_ROWS
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"{status} after 2,000 env steps, 1,000 updates, 0:08"


def test_the_screen_of_a_run_with_a_name_of_wide_characters_fits_a_terminal(
    tmp_path: Path, make_snapshot: Any, evaluation: EvalResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("runs") / ("实验" * 14)  # 56 columns in 28 characters
    (run / "checkpoints/step-000000001500").mkdir(parents=True)
    for name in ("config.yaml", "events.out.tfevents.1"):
        (run / name).write_text("{}\n")
    lines = printed(summary_of(make_snapshot(1000), last_eval=evaluation), run)
    assert sum(max(1, -(-cell_len(line) // 80)) for line in lines) <= MOST_ROWS


def test_a_resumed_run_says_from_where_on_its_time_counts(run: Path, make_snapshot: Any) -> None:
    summary = summary_of(make_snapshot(1000)) | {"from_env_step": 1500}
    assert printed(summary)[0] == "completed after 2,000 env steps, 1,000 updates, 0:08 since env step 1,500"


def test_it_says_what_came_out_and_where_it_is(run: Path, make_snapshot: Any, evaluation: EvalResult) -> None:
    lines = printed(summary_of(make_snapshot(1000), last_eval=evaluation))
    assert "return      -150.2 +/- 80.5 over 10 episodes of evaluation" in lines
    assert f"directory   {run}" in lines
    alone = printed(summary_of(make_snapshot(1000), last_eval=evaluation._replace(episodes=1)))
    assert "return      -150.2 in one episode of evaluation" in alone  # it has no spread
    assert any("Train " in line and " 6.1 " in line and " 70.9" in line for line in lines)
    assert any("Warm-up " in line and " 2.0 " in line and " 23.3" in line for line in lines)
    assert any(line.startswith("bottleneck  learner (train): ") for line in lines)


def test_without_an_evaluation_the_return_is_that_of_training(run: Path, make_snapshot: Any) -> None:
    lines = printed(summary_of(make_snapshot(1000), training_return=-812.34))
    assert "return      -812.3 in the last episodes of training; none of evaluation" in lines


def test_runs_of_too_few_records_are_not_to_be_compared(run: Path, make_snapshot: Any) -> None:
    assert COMPARABLE == MIN_RECORDS
    (run / "metrics.jsonl").write_text(20 * '{"train/n_updates": 0}\n' + 8 * '{"train/n_updates": 9}\n')
    assert not any("compare" in command for command in commands(printed(summary_of(make_snapshot(1000)))))


def test_a_run_of_another_environment_is_not_to_be_compared(run: Path, make_snapshot: Any) -> None:
    (run.with_name("20261121-090000-s1") / "config.yaml").write_text("env: {id: CartPole-v1}\n")
    assert not any("compare" in command for command in commands(printed(summary_of(make_snapshot(1000)))))


def test_a_run_is_not_compared_with_the_link_to_itself(run: Path, make_snapshot: Any) -> None:
    (run.parent / "latest").symlink_to(run.name, target_is_directory=True)
    assert not any("latest" in command for command in commands(printed(summary_of(make_snapshot(1000)))))


def test_a_completed_run_offers_more_episodes_and_more_steps(run: Path, make_snapshot: Any) -> None:
    assert commands(printed(summary_of(make_snapshot(1000)))) == [
        f"offpolicy eval {run} --episodes 20",
        f"offpolicy play {run} --video x.gif",
        f"offpolicy explain {run}",
        f"offpolicy compare {run.with_name('20261121-090000-s1')} {run}",
        f"offpolicy tensorboard {run.with_name('20261121-090000-s1')} {run}",
        f"offpolicy resume {run} total_timesteps=4000",
    ]


def test_an_interrupted_run_offers_to_go_on_first(run: Path, make_snapshot: Any) -> None:
    assert commands(printed(summary_of(make_snapshot(1000), "interrupted")))[0] == f"offpolicy resume {run}"


def test_a_failed_run_shows_the_cause_and_its_log(run: Path, make_snapshot: Any) -> None:
    lines = printed(summary_of(make_snapshot(1000), "failed"))
    assert lines[1] == f"because     {REASONS['failed']}"
    assert commands(lines)[:2] == [f"less {run}/train.log", f"offpolicy resume {run}"]


def test_a_run_that_never_learnt_shows_no_zeros(run: Path, make_snapshot: Any) -> None:
    lines = printed(summary_of(make_snapshot(0), "interrupted"))
    assert not any("0.0" in line or "Train" in line or "bottleneck" in line for line in lines)
    assert len(lines) <= 9


def test_nothing_is_offered_that_the_run_has_no_files_for(
    tmp_path: Path, make_snapshot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = printed(summary_of(make_snapshot(1000)), Path("bare"))
    assert not any(line.startswith("next") for line in lines)


@pytest.mark.parametrize("status", list(REASONS))
def test_every_command_is_understood(run: Path, make_snapshot: Any, status: str) -> None:
    for line in commands(printed(summary_of(make_snapshot(1000), status))):
        program, *words = shlex.split(line)
        if program == "offpolicy":
            cli._parser().parse_args(words)


def test_a_command_that_is_too_long_goes_on_in_the_next_line(tmp_path: Path, make_snapshot: Any) -> None:
    run = tmp_path.with_name("a run") / ("long" * 8)
    (run / "checkpoints/step-000000001500").mkdir(parents=True)
    lines = printed(summary_of(make_snapshot(10)), run)
    assert any(line.endswith("\\") for line in lines)
    assert f"offpolicy eval {shown_path(run)} --episodes 20" in commands(lines)


def test_a_run_that_saved_only_its_start_has_nothing_to_evaluate(run: Path, make_snapshot: Any) -> None:
    (run / "checkpoints/step-000000001500").rmdir()
    typed = commands(printed(summary_of(make_snapshot(1000), "interrupted")))
    assert f"offpolicy resume {run}" in typed
    assert not [command for command in typed if command.startswith(("offpolicy eval", "offpolicy play"))]


@pytest.mark.parametrize(("text", "is_offered"), [
    ('{"obs_dim": 2, "action_dim": 1, "action_low": [0], "action_high": [1], "draws": false}', False),
    ('{"obs_dim": 2, "action_dim": 1, "action_low": [0], "action_high": [1], "draws": true}', True),
    ('{"obs_dim": 2, "action_dim": 1, "action_low": [0], "action_high": [1]}', True),  # of an older version
    ('{"of another program": 1}', True),
    ("[]", True),
])  # fmt: skip
def test_a_film_is_not_offered_of_an_environment_that_makes_no_pictures(
    run: Path, make_snapshot: Any, text: str, is_offered: bool
) -> None:
    (run / "spaces.json").write_text(text)
    typed = commands(printed(summary_of(make_snapshot(1000))))
    assert (f"offpolicy play {run} --video x.gif" in typed) == is_offered
    assert f"offpolicy eval {run} --episodes 20" in typed


def test_no_word_of_a_shell_is_broken(tmp_path: Path, make_snapshot: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one two three " * 8, "long" * 30):
        run = Path(name.strip())
        (run / "checkpoints/step-000000001500").mkdir(parents=True)
        lines = printed(summary_of(make_snapshot(10)), run)
        assert f"offpolicy eval {shown_path(run)} --episodes 20" in commands(lines)
        first = next(index for index, line in enumerate(lines) if line.startswith("next"))
        words = [shlex.split(line.removesuffix("\\")) for line in lines[first:]]
        assert any(str(run) in line for line in words)


def test_a_screen_that_fails_leaves_the_first_line(
    run: Path, make_snapshot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offpolicy.logger.end_screen._account", lambda _: 1 / 0)
    lines = printed(summary_of(make_snapshot(1000)))
    assert lines[0].startswith("completed after 2,000 env steps")
    assert "ZeroDivisionError" in lines[1]


def test_what_others_leave_in_the_directories_does_not_break_the_screen(
    run: Path, make_snapshot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "checkpoints/step-00000001.bak").mkdir()
    gone = run.with_name("gone").absolute() / "metrics.jsonl"  # another one deletes it at this moment
    find = Path.glob
    monkeypatch.setattr(Path, "glob", lambda path, what: [gone] * (what == "*/metrics.jsonl") + list(find(path, what)))
    lines = printed(summary_of(make_snapshot(1000)))
    assert not any("warning" in line for line in lines)
    assert f"offpolicy compare {run.with_name('20261121-090000-s1')} {run}" in commands(lines)


def test_a_deleted_working_directory_leaves_a_screen(
    tmp_path: Path, make_snapshot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    try:
        assert shown_path(Path("runs/a b")) == "'runs/a b'"
        lines = printed(summary_of(make_snapshot(1000)))
    finally:
        os.chdir(tmp_path)
    assert not any("warning" in line for line in lines)
    assert any(str(RUN) in line for line in lines)


def test_a_run_of_another_loop_is_not_offered_to_explain(run: Path, make_snapshot: Any) -> None:
    (run / "config.yaml").write_text("task: ant\n")
    offered = commands(printed(summary_of(make_snapshot(1000))))
    assert not any("explain" in command for command in offered)
    assert any("compare" in command for command in offered)


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [0.333, 0.333, 0.334], [1e-9, 5.0, 2.0, 0.0], [7.0] * 13])
def test_percentages_sum_to_exactly_one_hundred(values: list[float]) -> None:
    assert sum(round(10 * float(share)) for share in percentages(values)) == 1000


def test_percentages_of_nothing_are_unknown() -> None:
    assert percentages([0.0, 0.0]) == ["-", "-"]


@pytest.mark.parametrize(
    ("learner", "collectors", "expected"),
    [(0, 0, []), (1, 0, ["learner once"]), (2, 1, ["learner 2 times, collectors once"])],
)
def test_restarts_are_shown_where_there_were_some(
    make_snapshot: Any, learner: int, collectors: int, expected: list[str]
) -> None:
    snapshot = dataclasses.replace(make_snapshot(1000), learner_restarts=learner, restarts=collectors)
    lines = printed(summary_of(snapshot))
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("restarted")] == expected
    assert len(lines) <= MOST_ROWS
