"""The directory of links that TensorBoard is shown."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from offpolicy.cli import main
from offpolicy.commands import tensorboard
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


def test_a_run_is_shown_though_an_attempt_of_it_was_set_aside_before(tmp_path: Path) -> None:
    root, links = tmp_path / "runs", tmp_path / "links"
    run_at(root / "demo/attempt-0")
    run_at(root / "attempt-1")  # what others call so is no attempt of a run
    (root / "demo/config.yaml").touch()
    assert link_all(root, links) == [links / "attempt-1"]
    (root / "demo/events.out.tfevents.1.host").touch()
    assert link_all(root, links) == [links / "demo"]


def test_a_run_itself_may_be_where_all_runs_are(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run")
    assert link_all(run, tmp_path / "links") == [tmp_path / "links/run"]


def test_without_any_run_the_command_says_what_writes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tensorboard", "--logdir", str(tmp_path)]) == 2
    assert "holds no run with event files" in capsys.readouterr().err


class Server:
    """What is started in place of TensorBoard."""

    commands: ClassVar[list[list[str]]] = []

    def __init__(self, command: list[str]) -> None:
        self.commands.append(command)
        self._links = Path(command[command.index("--logdir") + 1])
        self._num_waits = 0

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def terminate(self) -> None:
        """Is called at each end."""

    def wait(self, timeout_s: float) -> int:
        """Runs on once, in which time a run begins; ends when that one is shown."""
        self._num_waits += 1
        if self._num_waits == 1:
            run_at(Path("runs/later"))
            raise subprocess.TimeoutExpired("tensorboard", timeout_s)
        assert (self._links / "later").is_dir() == (not any(place.is_symlink() for place in self._links.glob("a")))
        return 0


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    monkeypatch.setattr(tensorboard.subprocess, "Popen", Server)
    monkeypatch.setattr(tensorboard, "LINK_AGAIN_S", 0.0)
    monkeypatch.setattr(Server, "commands", [])
    monkeypatch.chdir(tmp_path)
    return Server.commands


@pytest.mark.parametrize("words", [["--port", "6199"], ["--port=6199"]])
def test_the_value_of_an_option_is_no_run(commands: list[list[str]], tmp_path: Path, words: list[str]) -> None:
    """`make tensorboard runs="a=.. b=.." port=6199` was refused: "run: got '6199'"."""
    run = run_at(tmp_path / "run")
    assert main(["tensorboard", *words, "--host", "0.0.0.0", f"a={run}", f"b={run}"]) == 0
    assert [word for word in commands[0] if word.startswith(("--port", "--host"))] == ["--port=6199", "--host=0.0.0.0"]


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ([], "the page #custom_scalars of the address below"),
        (["--port=6199"], "http://localhost:6199/#custom_scalars"),
        (["--port=6199", "--host=10.0.0.7"], "http://10.0.0.7:6199/#custom_scalars"),
        (["--port=6199", "--host=0.0.0.0"], f"http://{socket.gethostname()}:6199/#custom_scalars"),
    ],
)
def test_the_page_is_named_where_it_is_known(
    commands: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], page: str
) -> None:
    assert main(["tensorboard", *words, f"a={run_at(tmp_path / 'run')}"]) == 0
    assert capsys.readouterr().err == f"one chart per phase: {page}\n"
    # Given none, TensorBoard looks for a free one: a second command used to fail.
    assert any(word.startswith("--port") for word in commands[0]) == ("--port=6199" in words)


def test_runs_that_begin_while_it_serves_are_shown_too(commands: list[list[str]]) -> None:
    run_at(Path("runs/first"))
    assert main(["tensorboard"]) == 0
    assert len(commands) == 1


def test_a_signal_while_the_server_starts_ends_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was raised where nobody knew the server yet, which stayed."""
    real, servers = subprocess.Popen, list[Any]()

    def start(_: Any) -> Any:
        servers.append(real([sys.executable, "-c", "import time; time.sleep(60)"]))
        os.kill(os.getpid(), signal.SIGTERM)
        return servers[0]

    monkeypatch.setattr(subprocess, "Popen", start)
    assert main(["tensorboard", f"a={run_at(tmp_path / 'run')}"]) == 0
    assert servers[0].returncode == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_disk_that_refuses_a_link_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = list[Any]()
    real = subprocess.Popen

    def start(_: Any) -> Any:
        servers.append(real([sys.executable, "-c", "import time; time.sleep(60)"]))
        return servers[0]

    def refuse() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(tensorboard, "LINK_AGAIN_S", 0.0)
    with pytest.raises(OSError, match="No space left"):
        tensorboard._serve([], refuse)
    assert servers[0].returncode == -signal.SIGTERM


def test_ctrl_c_is_no_failure_although_the_server_gets_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen

    def start(_: Any) -> Any:
        server = real([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"])
        server.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        return server

    monkeypatch.setattr(subprocess, "Popen", start)
    assert tensorboard._serve([], lambda: None) == 0


def test_an_option_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["tensorboard", "--logdir_spec", "x", f"a={run_at(tmp_path / 'run')}"])


def test_a_terminated_command_takes_its_server_with_it(tmp_path: Path) -> None:
    """`kill` of the command left the server behind, with the port."""
    run, pid_file, server = run_at(tmp_path / "run"), tmp_path / "pid", tmp_path / "server"
    server.write_text(f"#!/bin/sh\necho $$ > {pid_file}\nexec sleep 60\n")
    server.chmod(0o755)
    root, options = str(Path(__file__).resolve().parents[3]), {"port": None, "host": None}
    code = f"""
import sys
sys.path.append({root!r})
from offpolicy.commands.tensorboard import tensorboard
sys.executable = {str(server)!r}  # in place of Python, which would run TensorBoard
sys.exit(tensorboard([{str(run)!r}], None, {options!r}))
"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as command:
        while not (pid_file.exists() and pid_file.read_text().strip()):
            assert command.poll() is None
            time.sleep(0.05)
        command.terminate()
        assert command.wait(20) == 0
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()
