"""The directory of links that TensorBoard is shown."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from offpolicy.cli import main
from offpolicy.commands.tensorboard import link, link_all
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
    assert [str(place.relative_to(tmp_path / "links")) for place in places] == ["a", "a\u2215b", "\u2215abs"]
    assert [path.name for path in runs[0].iterdir()] == ["events.out.tfevents.1.host"]


def test_a_directory_without_event_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="allowed a directory with event files"):
        link([str(tmp_path / "empty")], tmp_path)
    assert main(["tensorboard", str(tmp_path / "empty")]) == 2
    assert "allowed a directory with event files" in capsys.readouterr().err


def test_all_runs_are_linked_once_and_those_that_begin_later(tmp_path: Path) -> None:
    root, links = tmp_path / "runs", tmp_path / "links"
    runs = [run_at(root / "sac/Pendulum-v1/a"), run_at(root / "b")]
    (root / "latest").symlink_to(runs[0], target_is_directory=True)
    assert sorted(str(place.relative_to(links)) for place in link_all(root, links)) == ["b", "sac/Pendulum-v1/a"]
    assert link_all(root, links) == []
    later = run_at(root / "td3/c")
    assert [place.resolve() for place in link_all(root, links)] == [later]


def test_without_any_run_the_command_says_what_writes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tensorboard", "--logdir", str(tmp_path)]) == 2
    assert "holds no run with event files" in capsys.readouterr().err


def test_an_option_that_is_not_known_is_refused(tmp_path: Path) -> None:
    assert main(["tensorboard", "--logdir_spec", "x", f"a={run_at(tmp_path / 'run')}"]) == 2


def test_a_terminated_command_takes_its_server_with_it(tmp_path: Path) -> None:
    """`kill` of the command left the server behind, with the port."""
    run, pid_file, server = run_at(tmp_path / "run"), tmp_path / "pid", tmp_path / "server"
    server.write_text(f"#!/bin/sh\necho $$ > {pid_file}\nexec sleep 60\n")
    server.chmod(0o755)
    root = str(Path(__file__).resolve().parents[3])
    code = f"""
import sys
sys.path.append({root!r})
from offpolicy.cli import main
sys.executable = {str(server)!r}  # in place of Python, which would run TensorBoard
sys.exit(main(["tensorboard", {str(run)!r}]))
"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as command:
        while not (pid_file.exists() and pid_file.read_text().strip()):
            assert command.poll() is None
            time.sleep(0.05)
        command.terminate()
        assert command.wait(20) == 0
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()
