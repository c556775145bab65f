"""A run is found by its directory, as `latest`, or by a unique beginning of its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from offpolicy.errors import ConfigError
from offpolicy.run_names import find_run, mark_latest, runs_in

NAMES = ("sac/Pendulum-v1/20260101-100000-s1", "sac/Pendulum-v1/20260102-100000-s1", "td3/Ant-v5/20260103-100000-s2")


@pytest.fixture(autouse=True)
def _three_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(reversed(NAMES)):
        directory = Path("runs", name)
        directory.mkdir(parents=True)
        (directory / "config.yaml").touch()
        os.utime(directory / "config.yaml", (1e9 - age, 1e9 - age))


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(ConfigError, match="run: got a name of 256 bytes, "):
        find_run(256 * "x")


@pytest.mark.parametrize(
    ("word", "index"),
    [
        (f"runs/{NAMES[0]}", 0),
        (NAMES[0], 0),
        ("20260102", 1),
        ("20260102-100000-s1", 1),
        ("sac/Pendulum-v1/20260102", 1),
        ("runs/td3", 2),
        ("Ant", 2),
        ("td3/", 2),
        ("latest", 2),
    ],
)
def test_a_run_is_found_by_a_unique_beginning(word: str, index: int) -> None:
    assert find_run(word) == Path("runs", NAMES[index])


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("sac", "begins the names of 2 runs: sac/Pendulum-v1/20260102-100000-s1, sac/Pendulum-v1/20260101-100000-s1"),
        ("2027", "offpolicy list shows them"),
        ("s1", "offpolicy list shows them"),
        ("", "offpolicy list shows them"),
    ],
)
def test_what_names_none_or_several_is_refused(word: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"run: got '{word}', .*{problem}"):
        find_run(word)


def test_latest_is_the_run_that_was_started_last(tmp_path: Path) -> None:
    for name in (NAMES[0], NAMES[1]):
        mark_latest(Path("runs", name))
        assert find_run("latest") == find_run("runs/latest") == Path("runs", name)
        assert os.readlink("runs/latest") == name
    assert len(runs_in(Path("runs"))) == 3  # the link is not a fourth


@pytest.mark.parametrize("word", ["latest", "runs/latest", "./runs/latest"])
@pytest.mark.parametrize("is_removed", [True, False])
def test_latest_is_the_newest_run_where_the_link_leads_nowhere(word: str, is_removed: bool) -> None:
    if is_removed:
        Path("runs/latest").symlink_to("gone")
    assert find_run(word) == Path("runs", NAMES[2])


def test_a_directory_with_records_comes_before_the_names_of_runs() -> None:
    for name in ("td3", "other"):
        Path(name).mkdir()
    assert find_run("td3") == Path("runs", NAMES[2])  # a directory of something else
    Path("td3/events.out.tfevents.1.host").touch()
    assert find_run("td3") == Path("td3")
    assert find_run("other") == Path("other")


def test_a_run_without_a_readable_configuration_does_not_hide_the_others() -> None:
    broken = Path("runs/sac/broken")
    broken.mkdir()
    (broken / "config.yaml").symlink_to("gone")
    assert set(runs_in(Path("runs"))) == {Path("runs", name) for name in NAMES}
    assert find_run("Ant") == Path("runs", NAMES[2])


def test_latest_without_a_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(ConfigError, match="run: got 'latest', but .* holds no run"):
        find_run("latest")


def test_a_run_elsewhere_is_latest_too(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    mark_latest(tmp_path / "mine")
    assert find_run("latest").resolve() == (tmp_path / "mine").resolve()
