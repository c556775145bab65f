"""The directory of links that TensorBoard is shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from offpolicy.commands.tensorboard import link, main
from offpolicy.errors import ConfigError


def run_at(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "events.out.tfevents.1.host").touch()
    return path


def test_a_run_is_linked_under_its_label_and_seeds_are_numbered(tmp_path: Path) -> None:
    runs = [run_at(tmp_path / name) for name in ("one", "two", "three")]
    (tmp_path / "links").mkdir()
    places = link([f"a={runs[0]}", f"a={runs[1]}", str(runs[2])], tmp_path / "links")
    assert [str(place.relative_to(tmp_path / "links")) for place in places] == ["a/1", "a/2", "three"]
    assert [place.resolve() for place in places] == runs


def test_a_label_with_a_slash_is_linked_flat_and_never_into_a_run(tmp_path: Path) -> None:
    runs = [run_at(tmp_path / name) for name in ("one", "two", "three")]
    (tmp_path / "links").mkdir()
    places = link([f"a={runs[0]}", f"a/b={runs[1]}", f"/abs={runs[2]}"], tmp_path / "links")
    assert [str(place.relative_to(tmp_path / "links")) for place in places] == ["a", "a_b", "_abs"]
    assert [path.name for path in runs[0].iterdir()] == ["events.out.tfevents.1.host"]


def test_a_label_may_look_like_a_seed_of_another(tmp_path: Path) -> None:
    one, two = (run_at(tmp_path / name) for name in ("one", "two"))
    places = link([f"a={one}", f"a={two}", f"a/1={one}"], tmp_path)
    assert [str(place.relative_to(tmp_path)) for place in places] == ["a/1", "a/2", "a_1"]


@pytest.mark.parametrize(("words", "problem"), [(("a/b", "a_b"), "a/b and a_b"), (("..", "b"), "got the label '..'")])
def test_labels_that_cannot_be_linked_are_refused(tmp_path: Path, words: tuple[str, ...], problem: str) -> None:
    run = run_at(tmp_path / "run")
    with pytest.raises(ConfigError, match=re.escape(problem)):
        link([f"{word}={run}" for word in words], tmp_path)


def test_a_directory_without_event_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="allowed a directory with event files"):
        link([str(tmp_path / "empty")], tmp_path)
    assert main([str(tmp_path / "empty")]) == 2
    assert "allowed a directory with event files" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--port", "6199"], ["--port=6199"]])
def test_the_value_of_an_option_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """`make tensorboard runs="a=.. b=.." port=6199` was refused: "run: got '6199'"."""
    run, started = run_at(tmp_path / "run"), list[list[str]]()

    def start(command: list[str]) -> int:
        started.append(command)
        return 0

    monkeypatch.setattr("subprocess.call", start)
    assert main([*words, "--host", "0.0.0.0", f"a={run}", f"b={run}"]) == 0
    assert [word for word in started[0] if word.startswith(("--port", "--host"))] == ["--port=6199", "--host=0.0.0.0"]


def test_an_option_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--logdir", "x", f"a={run_at(tmp_path / 'run')}"])
