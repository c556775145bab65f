"""A run is found by its directory, as `latest`, or by a unique beginning of its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from offpolicy.errors import ConfigError
from offpolicy.runs import check_output, find_run, mark_latest, read_lines, runs_in, short_name

NAMES = ("sac/Pendulum-v1/20260101-100000-s1", "sac/Pendulum-v1/20260102-100000-s1", "td3/Ant-v5/20260103-100000-s2")


@pytest.fixture(autouse=True)
def _three_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(reversed(NAMES)):
        directory = Path("runs", name)
        directory.mkdir(parents=True)
        (directory / "config.yaml").touch()
        os.utime(directory / "config.yaml", (1e9 - age, 1e9 - age))


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


@pytest.mark.parametrize(
    ("content", "records"),
    [
        ("", []),
        ('{"a": 1}\n{"a": 2', [{"a": 1}]),  # killed
        ('{"a": 1}\n[1]\nnull\nnot JSON\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
        (b'{"a": 1}\n\xff\n', [{"a": 1}]),
        ('{"a": 1}\n{"a": ' + "[" * 100_000, [{"a": 1}]),
    ],
)
def test_whole_records_are_read(tmp_path: Path, content: str | bytes, records: list[object]) -> None:
    file = tmp_path / "a.jsonl"
    assert read_lines(file) == []
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    assert read_lines(file) == records


def test_the_last_records_are_read_alone(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    assert read_lines(tmp_path / "a.jsonl", 20) == [{"a": 2}, {"a": 3}]


def test_the_short_name_of_a_run_is_no_other_ones_and_not_taken() -> None:
    runs = [Path("runs", name) for name in NAMES]
    assert short_name(runs[0], runs) == "20260101-100000-s1"
    assert short_name(Path("a/x"), [Path("a/x"), Path("b/x")]) == "a/x"
    assert short_name(Path("a/x"), [], {"x"}) == "a/x"


@pytest.mark.parametrize(
    ("name", "endings", "is_new", "allowed"),
    [
        ("there.gif", (".gif",), False, True),
        ("new.GIF", (".gif",), True, True),
        ("-", (), False, True),
        ("there.gif", (), True, False),
        ("new.txt", (".gif",), False, False),
        ("-", (".gif",), False, False),
        ("nowhere/new.gif", (), False, False),
        ("runs", (), False, False),
    ],
)
def test_what_a_command_may_write_is_checked_before_it_begins(
    name: str, endings: tuple[str, ...], is_new: bool, allowed: bool
) -> None:
    Path("there.gif").touch()
    if allowed:
        return check_output("--video", Path(name), *endings, is_new=is_new)
    with pytest.raises(ConfigError, match=f"--video: got '{name}', allowed a (new )?file .*in a directory that exists"):
        check_output("--video", Path(name), *endings, is_new=is_new)
    return None
