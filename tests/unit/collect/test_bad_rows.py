"""What a collector does about bad rows: their files, their count over lives and collectors, and their limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.collect.bad_rows import BadRows
from offpolicy.collect.collector import Progress
from offpolicy.collect.replay_writer import BadRow, BadRowError
from offpolicy.errors import NumericsError
from offpolicy.processes.control_page import CollectorWord, ControlPage
from offpolicy.types import StepOutcome


def two_collectors() -> ControlPage:
    return ControlPage(memoryview(bytearray(ControlPage.nbytes(1, 2))), 1, 2)


def bad_rows_at(
    run_dir: Path, control: ControlPage, limit: int = 10, before: tuple[int, int] = (0, 0)
) -> tuple[BadRows, list[str]]:
    """Those of the second of two collectors with three environments, and its warnings."""
    env: Any = SimpleNamespace(num_envs=3, can_reset_some=True, reset_some=lambda seed, *_: np.zeros((3, 2)))
    tracker: Any = SimpleNamespace(ep_return=np.zeros(3), ep_length=np.array([4, 5, 6]))
    writer: Any = SimpleNamespace(abandon=lambda envs: None)
    warnings: list[str] = []
    bad = BadRows(1, 1, control, before, limit, 1, run_dir, env, writer, tracker, warnings.append)
    return bad, warnings


NUMBERS, FLAGS = np.zeros(3, np.float32), np.zeros(3, np.bool_)
OUTCOME = StepOutcome(np.ones((3, 2), np.float32), NUMBERS, FLAGS, FLAGS, FLAGS, NUMBERS, NUMBERS)
TWO_BAD = BadRowError([BadRow(0, {"reward": [float("nan")]}), BadRow(2, {"obs": [float("inf")]})])


def test_every_bad_row_of_a_step_has_its_file_and_the_count_outlives_the_process(tmp_path: Path) -> None:
    control = two_collectors()
    words = control.collectors[1]
    for _ in range(2):  # the second one takes over, at the same env step
        bad, warnings = bad_rows_at(tmp_path, control)
        outcome = bad.skip(TWO_BAD, OUTCOME, Progress(np.zeros((3, 2), np.float32), env_steps=40))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"bad-row-40-{number}-collector-1-env-{env}.json" for number, env in ((1, 0), (2, 2), (3, 0), (4, 2))
    ]
    assert words.get(CollectorWord.BAD_ROWS) == 4
    assert [text.rpartition(", ")[2] for text in warnings] == [f"{n} of env.max_bad_rows=10" for n in (3, 4)]
    assert outcome.next_obs.tolist() == [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]


class Beginning:
    """Three environments; the first resets give NaN."""

    num_envs = 3

    def __init__(self, num_bad: int, *, can_reset_some: bool) -> None:
        self.num_bad, self.can_reset_some = num_bad, can_reset_some
        self.seeds, self.where = list[int](), list[list[bool]]()

    def reset(self, seed: int) -> np.ndarray:
        self.seeds.append(seed)
        obs = np.full((3, 2), 7.0, np.float32)
        obs[1] = np.nan if len(self.seeds) <= self.num_bad else 7.0
        return obs

    def reset_some(self, seed: int, numbers: Any, where: np.ndarray) -> np.ndarray:
        self.where.append(where.tolist())
        return self.reset(seed)


@pytest.mark.parametrize(("can_reset_some", "expected"), [(True, [1, 7, 1]), (False, [7, 7, 7])])
def test_episodes_that_begin_with_nan_are_begun_again_until_they_do_not(
    tmp_path: Path, can_reset_some: bool, expected: list[int]
) -> None:
    """Where all can only be reset together, the episodes of all end with the row, and none is glued to another."""
    bad, warnings = bad_rows_at(tmp_path, two_collectors())
    env = Beginning(2, can_reset_some=can_reset_some)
    bad = replace(bad, env=env)  # type: ignore[arg-type]
    outcome = OUTCOME._replace(is_valid=np.ones(3, np.bool_))
    found = bad.skip(BadRowError([BadRow(1, {"obs": [float("nan")]})]), outcome, Progress(NUMBERS, env_steps=40))
    assert found.next_obs[:, 0].tolist() == expected
    assert found.is_valid.tolist() == [value == 1 for value in expected]
    assert len(set(env.seeds)) == 3
    assert env.where == ([[False, True, False]] * 3 if can_reset_some else [])
    assert [text.rpartition(", ")[2] for text in warnings] == [f"{n} of env.max_bad_rows=10" for n in (1, 2, 3)]
    assert [f"episode step {step}, " in text for text, step in zip(warnings, (5, 0, 0), strict=True)] == [True] * 3


def test_an_episode_that_begins_with_nan_beyond_the_limit_is_an_error(tmp_path: Path) -> None:
    bad, _ = bad_rows_at(tmp_path, two_collectors(), limit=0)
    with pytest.raises(NumericsError, match="NaN or Inf in obs of environment 1 at env step 0"):
        bad.replace_obs(Progress(np.array([[1, 2], [3, np.nan], [5, 6]], np.float32)))


def test_a_disk_that_refuses_a_bad_row_costs_its_file_only(tmp_path: Path) -> None:
    control = two_collectors()
    bad, warnings = bad_rows_at(tmp_path / "missing", control)
    bad.skip(TWO_BAD, OUTCOME, Progress(np.zeros((3, 2), np.float32)))
    assert ["cannot be written: No such file or directory; skipped" in text for text in warnings] == [True] * 2


def test_one_bad_row_beyond_the_limit_is_an_error(tmp_path: Path) -> None:
    control = two_collectors()
    bad, _ = bad_rows_at(tmp_path, control, limit=1)
    with pytest.raises(NumericsError, match="NaN or Inf in reward of environment 0 at env step 0, episode step 4"):
        bad.skip(TWO_BAD, OUTCOME, Progress(np.zeros((3, 2), np.float32)))


def test_bad_rows_are_counted_over_all_collectors_and_those_before_the_resume(tmp_path: Path) -> None:
    """The other collector still starts and has announced none: it had two in the checkpoint."""
    control, progress = two_collectors(), Progress(np.zeros((3, 2), np.float32))
    control.collectors[1].set(CollectorWord.BAD_ROWS, 3)
    bad, warnings = bad_rows_at(tmp_path, control, limit=7, before=(2, 3))
    bad.skip(TWO_BAD, OUTCOME, progress)
    assert [text.rpartition(", ")[2] for text in warnings] == [f"{n} of env.max_bad_rows=7" for n in (6, 7)]
    control.collectors[0].set(CollectorWord.BAD_ROWS, 3)
    bad, _ = bad_rows_at(tmp_path, control, limit=9, before=(2, 3))
    with pytest.raises(NumericsError):
        bad.skip(TWO_BAD, OUTCOME, progress)
