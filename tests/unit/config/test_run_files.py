"""The files of a run directory give back what was written, and a damaged one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.config.run_files import env_differences, read_config, read_spec, write_config
from offpolicy.config.schema import EnvConfig, RunConfig
from offpolicy.errors import ConfigError, SaveError
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(3, 1, (-1.0,), (1.0,))
CFG = RunConfig.from_mapping({"seed": 7, "algo": {"hidden_dims": [64], "actor_lr": {"start": 1, "end": 0, "over": 9}}})


def test_configuration_and_spaces_come_back(tmp_path: Path) -> None:
    write_config(tmp_path, CFG, SPEC)
    assert (read_config(tmp_path), read_spec(tmp_path)) == (CFG, SPEC)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "spaces.json"]


def test_equal_files_are_not_written_again(tmp_path: Path) -> None:
    write_config(tmp_path, CFG, SPEC)
    before = (tmp_path / "config.yaml").stat()
    write_config(tmp_path, CFG, SPEC)
    assert (tmp_path / "config.yaml").stat().st_ino == before.st_ino


@pytest.mark.parametrize(("name", "read"), [("config.yaml", read_config), ("spaces.json", read_spec)])
def test_a_missing_or_damaged_file_is_named(tmp_path: Path, name: str, read: object) -> None:
    assert callable(read)
    for text in (None, "{"):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=f"{name}: cannot be read"):
            read(tmp_path)


def test_a_directory_that_is_gone_is_a_save_error(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="No such file or directory"):
        write_config(tmp_path / "gone", CFG, SPEC)


def test_only_what_makes_another_task_is_a_difference() -> None:
    one = EnvConfig(kwargs={"physics": "train", "num_threads": 1})
    other = EnvConfig(kwargs={"physics": "held_out", "num_threads": 2})
    assert env_differences(one, other) == ["env.kwargs.physics 'train', 'held_out'"]
