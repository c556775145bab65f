"""Whether a student needs its teacher on this host, and whether tasks are the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from offpolicy.config.overrides import load_config
from offpolicy.config.run_files import env_differences, write_config
from offpolicy.config.schema import EnvConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.errors import ConfigError
from offpolicy.launch.hosts import LaunchPlan
from offpolicy.launch.teacher import find_teacher
from offpolicy.types import SpaceSpec

STUDENT = load_config(["algo=hora", "env=hand_rotation", "stage=adapt", "teacher=teacher"])
TEACHER = load_config(["algo=hora", "env=hand_rotation"])
HISTORY = SpaceSpec(
    1066, 16, (-1.0,) * 16, (1.0,) * 16, ("obs", "privileged", "proprio_hist"), ((96,), (10,), (30, 32))
)
ALONE = HostInfo()


def outset(tmp_path: Path, place: HostInfo = ALONE, start_step: int = 0) -> LaunchPlan:
    cfg = dataclasses.replace(STUDENT, teacher=str(tmp_path / "teacher"), run_dir=str(tmp_path / "student"))
    return LaunchPlan(cfg, place, start_step)


def teacher_at(path: Path, obs: int) -> None:
    path.mkdir()
    spec = dataclasses.replace(HISTORY, obs_keys=("obs", "privileged"), obs_shapes=((obs,), (10,)))
    write_config(path, TEACHER, spec)


def test_only_the_first_host_looks_for_the_teacher(tmp_path: Path) -> None:
    other = dataclasses.replace(ALONE, host=1, num_hosts=2)
    assert find_teacher(outset(tmp_path, other), HISTORY) is None
    with pytest.raises(ConfigError, match="it has no config.yaml"):
        find_teacher(outset(tmp_path), HISTORY)


def test_hosts_that_have_agreed_on_a_checkpoint_need_no_teacher(tmp_path: Path) -> None:
    assert find_teacher(outset(tmp_path, start_step=100), HISTORY) is None


def test_a_teacher_with_other_groups_is_refused(tmp_path: Path) -> None:
    teacher_at(tmp_path / "teacher", obs=64)
    with pytest.raises(ConfigError, match=r"env\.id: group obs has \(64,\) with the teacher .*, \(96,\) in this run"):
        find_teacher(outset(tmp_path), HISTORY)


def test_a_teacher_that_saved_nothing_is_refused(tmp_path: Path) -> None:
    teacher_at(tmp_path / "teacher", obs=96)
    with pytest.raises(ConfigError, match="teacher: .* holds no usable checkpoint"):
        find_teacher(outset(tmp_path), HISTORY)


def test_a_teacher_without_its_spaces_is_refused(tmp_path: Path) -> None:
    teacher_at(tmp_path / "teacher", obs=96)
    (tmp_path / "teacher" / "spaces.json").unlink()
    with pytest.raises(ConfigError, match=r"spaces\.json: cannot be read"):
        find_teacher(outset(tmp_path), HISTORY)


def test_tasks_differ_by_what_is_simulated_not_by_what_is_seen() -> None:
    one = EnvConfig(id="A-v0", kwargs={"groups": ["obs"], "hand": "leap", "num_threads": 2})
    assert env_differences(one, one) == []
    assert env_differences(one, dataclasses.replace(one, kwargs={"hand": "leap"})) == []
    other = dataclasses.replace(one, id="B-v0", kwargs={"physics": "held_out"})
    told = ["env.id 'A-v0', 'B-v0'", "env.kwargs.hand 'leap', None", "env.kwargs.physics None, 'held_out'"]
    assert env_differences(one, other) == told
