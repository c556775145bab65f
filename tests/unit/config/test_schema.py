"""A configuration is checked as a whole, its defaults survive a round trip, and so do the files of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpolicy import __version__
from offpolicy.config.run_files import env_differences, read_config, read_spec, write_config
from offpolicy.config.schema import RunConfig
from offpolicy.config.sections import EnvConfig
from offpolicy.errors import ConfigError, SaveError
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(3, 1, (-1.0,), (1.0,))
CFG = RunConfig.from_mapping({"seed": 7, "algo": {"hidden_dims": [64], "actor_lr": {"start": 1, "end": 0, "over": 9}}})


def valid_trees() -> st.SearchStrategy[dict[str, Any]]:
    names = st.text("abc_", min_size=1, max_size=5)
    plain = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.none())
    kwargs = st.dictionaries(names, st.one_of(plain, st.lists(plain), st.dictionaries(names, plain)), max_size=3)
    algo = st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from(["sac", "td3"]),
            "gamma": st.floats(0.0, 1.0),
            "utd": st.floats(0.01, 64.0),
            "hidden_dims": st.lists(st.integers(1, 4096), min_size=1, max_size=4),
            "max_grad_norm": st.one_of(st.none(), st.floats(1e-6, 1e6)),
            "learning_starts": st.integers(1, 19_900),
        },
    )
    env = st.fixed_dictionaries({}, optional={"kwargs": kwargs, "num_envs": st.integers(1, 16384)})
    return st.fixed_dictionaries({"algo": algo, "env": env}, optional={"seed": st.integers(0, 2**31 - 1)})


@given(raw=valid_trees())
def test_a_configuration_survives_json(raw: dict[str, Any]) -> None:
    config = RunConfig.from_mapping(raw)
    assert RunConfig.from_mapping(json.loads(json.dumps(config.to_mapping()))) == config


def test_the_replay_never_allocates_more_rows_than_the_run_writes() -> None:
    config = RunConfig.from_mapping({"total_timesteps": 3000, "env": {"num_envs": 8}})
    assert config.replay_rows == 3008
    assert RunConfig.from_mapping({"replay": {"capacity": 2000}}).replay_rows == 2000


def test_a_batch_may_have_one_bad_row_in_10_000_unless_another_number_is_given() -> None:
    batch = {"id": "", "batch": "mine:make"}
    for env, expected in (
        ({}, 0), (batch, 12), ({"vectorization": "vector"}, 12), ({**batch, "max_bad_rows": 0}, 0),
        ({"max_bad_rows": 3}, 3),
    ):  # fmt: skip
        assert RunConfig.from_mapping({"total_timesteps": 129_999, "env": env}).max_bad_rows == expected


def test_configuration_and_spaces_come_back(tmp_path: Path) -> None:
    write_config(tmp_path, CFG, SPEC)
    assert (read_config(tmp_path), read_spec(tmp_path)) == (CFG, SPEC)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "spaces.json"]


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


def test_a_configuration_of_another_version_names_both(tmp_path: Path) -> None:
    comments = "# offpolicy 99.1, 2030-01-01T00:00:00+00:00 on vm\n# offpolicy train seed=2\n"
    (tmp_path / "config.yaml").write_text(f"future_key: 1\n{comments}")
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path)
    first, second = caught.value.problems
    assert "written by offpolicy 99.1, this is" in first
    assert second.startswith("future_key: unknown key")
    (tmp_path / "config.yaml").write_text(f"future_key: 1\n{comments.replace('99.1', __version__)}")
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["future_key"]


def test_the_comments_of_a_run_outlive_its_resume(tmp_path: Path) -> None:
    cfg = RunConfig.from_mapping({})
    write_config(tmp_path, cfg, SPEC)
    with (tmp_path / "config.yaml").open("a") as file:
        file.write("# ran: threads.learner=2\n")
    write_config(tmp_path, replace(cfg, total_timesteps=30_000), SPEC)
    assert (tmp_path / "config.yaml").read_text().endswith("# ran: threads.learner=2\n")
    assert read_config(tmp_path).total_timesteps == 30_000


def test_the_files_of_a_run_are_durable_before_it_can_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that survives a power loss is of no use without its configuration."""
    synced: list[str] = []
    monkeypatch.setattr(
        "os.fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
    )
    write_config(tmp_path, CFG, SPEC)
    assert [name.split(".")[1] for name in synced if name.endswith(".tmp")] == ["config", "spaces"]
    assert synced.count(tmp_path.name) == 2
