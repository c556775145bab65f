"""The directory of links that TensorBoard is shown."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from offpolicy.commands.tensorboard import labelled, link, runs_below
from tests.unit.commands.conftest import Typed


def run_at(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "events.out.tfevents.1.host").touch()
    return path


def linked(directory: Path) -> dict[str, Path]:
    links = (path for path in directory.rglob("*") if path.is_symlink())
    return {str(path.relative_to(directory)): path.resolve() for path in links}


def test_runs_are_linked_under_their_labels_and_seeds_are_numbered(tmp_path: Path) -> None:
    """A label with a slash is linked flat, never into a run."""
    one, two, three = (run_at(tmp_path / name) for name in ("one", "two", "three"))
    for directory, words, links in (
        ("seeds", [f"a={one}", f"a={two}", str(three)], {"a/1": one, "a/2": two, "three": three}),
        ("flat", [f"a={one}", f"a/b={two}", f"/abs={three}"], {"a": one, "a\u2215b": two, "\u2215abs": three}),
    ):
        link(labelled(words), tmp_path / directory)
        assert linked(tmp_path / directory) == links
    assert [path.name for path in one.iterdir()] == ["events.out.tfevents.1.host"]


def test_all_runs_are_linked_once_and_those_that_begin_later(tmp_path: Path) -> None:
    root, links = tmp_path / "runs", tmp_path / "links"
    runs = {name: run_at(root / name) for name in ("sac/Pendulum-v1/a", "b")}
    (root / "latest").symlink_to(runs["b"], target_is_directory=True)
    link(runs_below(root), links)
    assert linked(links) == runs
    runs["td3/c"] = run_at(root / "td3/c")
    link(runs_below(root), links)
    assert linked(links) == runs


def test_what_cannot_be_shown_is_refused(tmp_path: Path, refused: Typed) -> None:
    (tmp_path / "empty").mkdir()
    assert "allowed a directory with event files" in refused("tensorboard", tmp_path / "empty")
    assert "holds no run with event files" in refused("tensorboard", "--logdir", tmp_path)
    refused("tensorboard", "--logdir_spec", "x", f"a={run_at(tmp_path / 'run')}")


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
