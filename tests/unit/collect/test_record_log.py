"""A log whose disk refuses warns once and goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpolicy.collect.record_log import RecordLog


def test_lines_beyond_the_last_step_are_superseded(tmp_path: Path) -> None:
    path, warnings = tmp_path / "log.jsonl", list[str]()
    for last_step, env_steps in ((None, 5), (None, 9), (5, 7)):
        log = RecordLog(path, last_step, warnings.append)
        log.append({"env_steps": env_steps})
        log.close()
    assert [json.loads(line)["env_steps"] for line in path.read_text().splitlines()] == [5, 7]
    assert warnings == []


def test_a_refusal_is_said_once(tmp_path: Path) -> None:
    warnings: list[str] = []
    log = RecordLog(tmp_path / "nowhere" / "log.jsonl", None, warnings.append)
    log.append({"env_steps": 1})
    log.close()
    assert len(warnings) == 1
    assert warnings[0].startswith("log.jsonl cannot be written:")


def test_a_file_that_could_not_be_opened_is_written_once_it_can(tmp_path: Path) -> None:
    path, warnings = tmp_path / "later" / "log.jsonl", list[str]()
    log = RecordLog(path, 0, warnings.append)
    log.append({"env_steps": 1})
    path.parent.mkdir()
    for env_steps in (2, 3):
        log.append({"env_steps": env_steps})
    log.close()
    assert [json.loads(line)["env_steps"] for line in path.read_text().splitlines()] == [2, 3]
    assert len(warnings) == 1


def test_what_comes_after_the_end_is_dropped_and_moves_nothing_away(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = RecordLog(path, 0, pytest.fail)
    log.append({"env_steps": 1})
    log.close()
    log.append({"env_steps": 2})
    assert [json.loads(line)["env_steps"] for line in path.read_text().splitlines()] == [1]
