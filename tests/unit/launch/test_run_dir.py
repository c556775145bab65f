"""Who may use a run directory, what is resumed, what is refused, and that a refusal leaves no trace."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import offpolicy
from offpolicy.checkpoint import CheckpointStore
from offpolicy.collect.video import VIDEOS
from offpolicy.config.sections import EnvConfig
from offpolicy.errors import CheckpointError, ConfigError, RunDirBusyError
from offpolicy.launch.run_dir import LOCK, RunDir, default_run_dir, has_saved_nothing, refuse_file
from offpolicy.launch.run_lock import RunLock
from tests.fakes import refused, shared_state

REPOSITORY = Path(offpolicy.__file__).parents[1]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The path of a run with checkpoints at 100 and 200."""
    run = tmp_path / "run"
    begin(run)
    for env_steps in (100, 200):
        with CheckpointStore(run / "checkpoints").begin(env_steps) as draft:
            draft.add_json("state", shared_state(env_steps))
    return run


def begin(path: Path) -> None:
    """A run that was there."""
    with RunDir.claim(path, "auto") as claimed:
        claimed.begin()


def tree(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


def test_a_missing_directory_is_made_with_its_parents_unless_a_run_must_be_there(tmp_path: Path) -> None:
    for resume in ("auto", "never"):
        with RunDir.claim(tmp_path / resume / "run", resume) as claimed:
            assert (claimed.path.is_dir(), claimed.checkpoint) == (True, None)
    (tmp_path / "empty").mkdir()
    before = tree(tmp_path)
    for name in ("missing", "empty"):
        with pytest.raises(CheckpointError, match=f"{name} holds no run to resume, and resume=must"):
            RunDir.claim(tmp_path / name, "must")
    assert tree(tmp_path) == before


@pytest.mark.promise("run-dir")
def test_never_refuses_a_directory_with_content(run: Path) -> None:
    before = tree(run)
    with pytest.raises(ConfigError, match=r"run exists and resume=never; refused, never overwritten") as caught:
        RunDir.claim(run, "never")
    assert caught.value.exit_code == 2
    assert tree(run) == before


@pytest.mark.promise("run-dir")
def test_when_every_checkpoint_is_damaged_all_are_named(run: Path) -> None:
    for name in ("step-000000000100", "step-000000000200"):
        (run / "checkpoints" / name / "MANIFEST.json").unlink()
    with pytest.raises(CheckpointError) as caught:
        RunDir.claim(run, "auto")
    lines = str(caught.value).split("\n")
    assert ["step-000000000200" in lines[0], "step-000000000100" in lines[1], len(lines)] == [True, True, 3]


@pytest.fixture
def holder(run: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the run."""
    script = (
        "import sys; from pathlib import Path; from offpolicy.launch.run_dir import RunDir\n"
        "claimed = RunDir.claim(Path(sys.argv[1]), 'auto'); claimed.begin()\n"
        "print('claimed', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(run)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        yield process
        process.kill()


def test_a_second_run_is_refused_until_the_first_is_killed(run: Path, holder: subprocess.Popen[str]) -> None:
    before = tree(run)
    with pytest.raises(RunDirBusyError, match=f"by pid {holder.pid} on host {socket.gethostname()}") as caught:
        RunDir.claim(run, "auto")
    assert caught.value.exit_code == 73
    assert tree(run) == before
    holder.send_signal(signal.SIGKILL)
    holder.wait(10)
    with RunDir.claim(run, "must") as claimed:
        assert claimed.checkpoint is not None


@contextlib.contextmanager
def stopped() -> Iterator[None]:
    """A stop that comes before the checkpoints are read."""
    raise KeyboardInterrupt
    yield


def test_a_start_that_is_stopped_or_refused_leaves_the_run_as_it_was(run: Path) -> None:
    def refused() -> None:
        with RunDir.claim(run, "auto"):
            raise ConfigError("of another run")

    (run / LOCK).write_text(killed := json.dumps({"pid": 2**30, "parent": 1, "host": "here"}))
    before = tree(run)
    with pytest.raises(KeyboardInterrupt):
        RunDir.claim(run, "auto", while_reading=stopped)
    with pytest.raises(ConfigError):
        refused()
    assert (tree(run), (run / LOCK).read_text()) == (before, killed)


def test_the_default_name_holds_algo_env_stamp_and_seed_and_a_number_where_it_is_taken(tmp_path: Path) -> None:
    for env_id, safe in (
        ("Pendulum-v1", "Pendulum-v1"),
        ("my.module:EnvId-v0", "my.module_EnvId-v0"),
        *(("..", "_"), ("../../etc", "__.._etc"), ("a b\n", "a_b_")),
    ):
        path = default_run_dir(tmp_path, "sac", EnvConfig(id=env_id), "T", 7)
        assert path == tmp_path / "sac" / safe / "T-s7"
    assert tree(tmp_path) == []
    for expected in ("T-s1", "T-s1-2", "T-s1-3"):
        path = default_run_dir(tmp_path, "sac", EnvConfig(id="", batch="mine:Masses"), "T", 1)
        assert path == tmp_path / "sac" / "Masses" / expected
        path.mkdir(parents=True)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "file/run"):
        with pytest.raises(ConfigError, match=r"allowed a directory: .*file is a file; write run_dir="):
            refuse_file(tmp_path / name)
    refuse_file(tmp_path / "new/run")


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    """The path of a run that was killed before it saved anything."""
    lost = tmp_path / "lost"
    begin(lost)
    (lost / "config.yaml").write_text("seed: 1")
    (lost / "metrics.jsonl").write_text('{"env_steps": 10}')
    (lost / "checkpoints" / ".tmp-0123").mkdir(parents=True)  # killed in its first save
    return lost


def test_a_run_that_saved_nothing_starts_again_and_its_records_are_kept(lost: Path) -> None:
    for attempt in (0, 1):
        with RunDir.claim(lost, "auto") as claimed:
            assert claimed.checkpoint is None
            assert f"before its first checkpoint; its records are in {lost}/attempt-{attempt}," in claimed.warnings[0]
            assert sorted(os.listdir(lost)) == [LOCK, *(f"attempt-{number}" for number in range(attempt + 1))]
        (lost / "config.yaml").write_text("seed: 1")
    assert (lost / "attempt-0" / "metrics.jsonl").read_text() == '{"env_steps": 10}'


def test_resuming_a_run_that_saved_nothing_says_what_starts_it_again(lost: Path) -> None:
    before = tree(lost)
    with pytest.raises(CheckpointError, match=f"give the `offpolicy train` command that began it .*run_dir={lost}"):
        RunDir.claim(lost, "must")
    with pytest.raises(ConfigError, match="resume=never"):
        RunDir.claim(lost, "never")
    assert tree(lost) == before


def test_a_checkpoint_that_was_saved_before_the_lock_is_not_moved_aside(
    lost: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(RunLock):
        """Another run saves between the first look at the directory and the lock."""

        def __init__(self, directory: Path) -> None:
            with CheckpointStore(directory / "checkpoints").begin(100) as draft:
                draft.add_json("state", shared_state(100))
            super().__init__(directory)

    monkeypatch.setattr("offpolicy.launch.run_dir.RunLock", Late)
    with RunDir.claim(lost, "auto") as claimed:
        assert claimed.checkpoint is not None
        assert (claimed.checkpoint.env_steps, claimed.warnings) == (100, ())
    assert (lost / "metrics.jsonl").exists()


def test_a_claim_removes_what_writers_that_were_killed_have_left(lost: Path) -> None:
    """Before an attempt is set aside; what a living process writes stays."""
    dead = f"{2**22 + 1}.tmp"
    part, draft = lost / ".snapshot-collector-0", lost / "checkpoints" / f".tmp-{'0' * 32}"
    files = [lost / f".spaces.json.{dead}", lost / VIDEOS / f".step-000000000100.gif.{dead}"]
    files += [lost / "checkpoints" / "best" / f".policy.safetensors.{dead}", part / "collector-0.json"]
    living = lost / f".x.json.{os.getpid()}.tmp"
    for path in (*files, draft / "collector-0.json", living):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    begin(lost)
    left = {path.name for path in lost.rglob("*")}
    assert not left & {part.name, draft.name, *(path.name for path in files)}
    assert living.name in left
    assert (lost / "attempt-0" / "checkpoints").is_dir()


@pytest.mark.parametrize("names", [("config.yaml", "src/main.py"), (".git/HEAD", ".env"), ("config.yaml", ".lock")])
def test_a_directory_of_somebody_else_is_refused_and_left_as_it_was(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("precious")
    before = tree(tmp_path)
    for resume in ("auto", "must"):
        with pytest.raises(CheckpointError, match="is not the directory of a run, and not empty") as caught:
            RunDir.claim(tmp_path, resume)
        assert caught.value.exit_code == 66
    assert tree(tmp_path) == before


def test_only_what_a_run_writes_is_moved(lost: Path) -> None:
    for name in ("notes.md", ".gitignore"):
        (lost / name).write_text("mine")
    for attempt in (0, 1):
        begin(lost)
        assert (lost / f"attempt-{attempt}").is_dir()
        (lost / "train.log").write_text("killed before its configuration was written")
    assert (lost / "notes.md").exists()
    assert sorted(os.listdir(lost / "attempt-1")) == ["train.log"]
    assert not has_saved_nothing(lost / "attempt-1")


@pytest.mark.promise("full-disk")
def test_a_disk_that_refuses_the_move_is_named_and_the_next_claim_finishes_it(lost: Path) -> None:
    problem = r"the records of the last attempt in .*lost cannot be moved to .*attempt-0: No"
    with refused("run_dir.aside@n=2:ENOSPC"), pytest.raises(ConfigError, match=problem):
        RunDir.claim(lost, "auto")
    begin(lost)
    assert (lost / "attempt-1").is_dir()


@pytest.mark.promise("full-disk")
def test_a_directory_that_the_disk_refuses_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a" / "run"
    with refused("run_dir.create:ENOSPC"), pytest.raises(ConfigError, match=r"a/run cannot be created: No space left"):
        RunDir.claim(path, "auto")
    assert tree(tmp_path) == []
    with refused("run_dir.lock:ENOSPC"), pytest.raises(ConfigError, match=r"a/run is not writable: No space left"):
        begin(path)
    assert tree(path) == []


def test_every_file_that_the_documents_name_is_moved_aside(lost: Path) -> None:
    table = (REPOSITORY / "docs" / "runs.md").read_text().partition("| file | content |")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name.rstrip("/").partition("/")[0] for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    names = {re.sub(r"<env steps>|<k>|<n>", "1", name).replace("*.", "metrics.") for name in named}
    for name in names - {"checkpoints", LOCK, "attempt-1", "host-1"}:
        (lost / name).touch()
    assert len(names) > 15
    begin(lost)
    assert sorted(os.listdir(lost)) == [LOCK, "attempt-0"]
