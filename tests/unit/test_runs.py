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


def test_a_run_is_found_by_a_unique_beginning() -> None:
    words = [
        (f"runs/{NAMES[0]}", NAMES[0]),
        ("20260102-100000-s1", "20260102", "sac/Pendulum-v1/20260102"),
        ("runs/td3", "Ant", "td3/", "latest"),
    ]
    for name, given in zip(NAMES, words, strict=True):
        assert {find_run(word) for word in given} == {Path("runs", name)}


def test_what_names_none_or_several_is_refused() -> None:
    several = f"begins the names of 2 runs, such as {NAMES[1]}, {NAMES[0]}"
    for word, problem in (("sac", several), *((word, "offpolicy list shows them") for word in ("2027", "s1", ""))):
        with pytest.raises(ConfigError, match=f"run: got '{word}', .*{problem}"):
            find_run(word)


def test_latest_is_the_run_that_was_started_last(tmp_path: Path) -> None:
    for name in (NAMES[0], NAMES[1]):
        mark_latest(Path("runs", name))
        assert find_run("latest") == find_run("runs/latest") == Path("runs", name)
        assert os.readlink("runs/latest") == name
    assert len(runs_in(Path("runs"))) == 3  # the link is not a fourth


def test_latest_is_the_newest_run_where_there_is_no_link_or_it_leads_nowhere() -> None:
    for _ in range(2):
        for word in ("latest", "runs/latest", "./runs/latest"):
            assert find_run(word) == Path("runs", NAMES[2])
        Path("runs/latest").unlink(missing_ok=True)
        Path("runs/latest").symlink_to("gone")


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


def test_latest_may_be_elsewhere_and_is_refused_without_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    mark_latest(tmp_path / "mine")
    assert find_run("latest").resolve() == (tmp_path / "mine").resolve()
    monkeypatch.chdir(tmp_path / "mine")
    with pytest.raises(ConfigError, match="run: got 'latest', but .* holds no run"):
        find_run("latest")


def test_whole_records_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    assert read_lines(file) == []
    for torn in (b"", b'{"a": 2', b"[1]\nnull\nnot JSON\n", b"\xff\n", b'{"a": ' + b"[" * 100_000):
        file.write_bytes(b'{"a": 1}\n' + torn + b'\n{"a": 3}\n')
        assert read_lines(file) == [{"a": 1}, {"a": 3}]
    file.write_text('{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    assert read_lines(file, 20) == [{"a": 2}, {"a": 3}]


def test_the_short_name_of_a_run_is_no_other_ones_and_not_taken() -> None:
    runs = [Path("runs", name) for name in NAMES]
    assert short_name(runs[0], runs) == "20260101-100000-s1"
    assert short_name(Path("a/x"), [Path("a/x"), Path("b/x")]) == "a/x"
    assert short_name(Path("a/x"), [], {"x"}) == "a/x"


def test_what_a_command_may_write_is_checked_before_it_begins() -> None:
    Path("there.gif").touch()
    check_output("--video", Path("there.gif"), ".gif")
    check_output("--video", Path("new.GIF"), ".gif", is_new=True)
    check_output("--video", Path("-"))
    for name, endings, is_new in (
        ("there.gif", (), True), ("new.txt", (".gif",), False), ("-", (".gif",), False), ("nowhere/new.gif", (), False),
        ("runs", (), False),
    ):  # fmt: skip
        allowed = "allowed a (new )?file .*in a directory that exists"
        with pytest.raises(ConfigError, match=f"--video: got '{name}', {allowed}"):
            check_output("--video", Path(name), *endings, is_new=is_new)
