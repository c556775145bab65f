"""Runs as real processes, small enough to be killed by the dozen."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from offpolicy.collect.evaluation import Episode, EpisodeCallbacks, random_actor, run_episodes
from offpolicy.commands.play import save_demos
from offpolicy.config.sections import EnvConfig
from offpolicy.envs.probe import probe
from tests import faults
from tests.conftest import RUN_ID_VARIABLE, Traces

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = (
    "env.id=offpolicy.envs.toy:PointMass-v0",
    "total_timesteps=600",
    "algo.learning_starts=100",
    "algo.hidden_dims=[16,16]",
    "algo.batch_size=16",
    "eval.episodes=1",
    "threads.learner=1",  # two would fight for cores with whatever else a test machine does
    "eval.beside=false",  # whatever machine this is: a run has the same processes everywhere
    "log.tensorboard=false",
    "log.every_s=0.2",
    "run_dir=run",
)
PAUSE_S = 5.0  # between two looks five times a second: nothing ran at all
NUM_CORES = len(os.sched_getaffinity(0))
LEAST_SHARE = 0.25  # of a second that counts, however many threads run: those of the test's own run are among them
# A collector waits a little at every vector step, or rollout: no machine is so fast that the run ends before its kill.
PACED = "ring.committed@role=collector:delay:3;rollout.committed@role=collector:delay:30"
ENDLESS = ("total_timesteps=100000000", "replay.capacity=100000")
# The run that tests share: bitwise repeatable, with checkpoints at 500, 1000 and 1100 env steps.
FINISHED = (
    *("total_timesteps=1100", "checkpoint.every=500", "collect.mode=alternate", "device=cpu"),
    *("algo.normalize_obs=true", "algo.n_step=3"),
)


def find_process(run_id: str, role: str, index: int = 0) -> int:
    """Returns the pid of the child `role` number `index` of a run."""
    mark = f"OFFPOLICY_RUN_ID={run_id}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            is_ours = mark in Path(f"/proc/{name}/environ").read_bytes()
            comm = Path(f"/proc/{name}/comm").read_text(errors="replace").strip()
        except OSError:
            continue
        if is_ours and comm == f"op-{role}-{index}":
            return int(name)
    raise AssertionError(f"no {role} {index} of run {run_id}")


def num_running() -> int:
    """Returns how many threads of the machine run now or wait for a core, this one among them."""
    return int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])


class Patience:
    """Seconds for which a test waits, of a machine that it has for itself.

    Those in which the test could not run itself do not count: all processes were stopped. Where more threads run than
    there are cores, each has a part of one, and so much of a second counts. A machine that sleeps, or programs beside
    the tests, would otherwise fail whatever test they meet.
    """

    def __init__(self, timeout_s: float) -> None:
        self._left_s, self._last_s = timeout_s, time.monotonic()

    def is_over(self) -> bool:
        """True once the seconds are used up; to be asked several times a second."""
        now_s = time.monotonic()
        gap_s, self._last_s = now_s - self._last_s, now_s
        if gap_s < PAUSE_S:
            self._left_s -= gap_s * min(1.0, max(LEAST_SHARE, NUM_CORES / max(num_running(), 1)))
        return self._left_s < 0.0


@dataclass
class LiveRun:
    """A run in the background."""

    process: subprocess.Popen[str]
    directory: Path
    run_id: str
    out: str = ""  # what a run that several tests share has printed

    def wait_for_updates(self, timeout_s: float = 40.0) -> None:
        """Returns after the first record with updates."""
        self.wait_until(lambda: any(r.get("train/n_updates", 0) > 0 for r in self.records()), timeout_s)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        patience = Patience(timeout_s)
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert not patience.is_over(), "timed out"
            time.sleep(0.05)

    def records(self) -> list[dict[str, Any]]:
        """Returns the whole lines of metrics.jsonl; the run may be writing the last one."""
        path = self.directory / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def pid_of(self, role: str, index: int = 0) -> int:
        return find_process(self.run_id, role, index)

    def finish(self, timeout_s: float = 40.0) -> tuple[int, str, str]:
        """Waits for the end and returns exit code, stdout and stderr."""
        patience = Patience(timeout_s)
        while True:
            try:
                out, err = self.process.communicate(timeout=0.2)
            except subprocess.TimeoutExpired:
                if patience.is_over():
                    raise
            else:
                return self.process.returncode, out, err

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return summary

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "checkpoints").glob("step-*"))


StartRun = Callable[..., LiveRun]


def launch(
    cwd: Path,
    environ: dict[str, str],
    overrides: tuple[str, ...],
    command: tuple[str, ...] = ("train", *TINY),
    stdout: int | IO[str] = subprocess.PIPE,
    cli: str = "offpolicy.cli",
) -> LiveRun:
    """Starts `offpolicy` with the words of `command`; `overrides` replace those of the same key."""
    given = {override.split("=")[0] for override in overrides}
    words = [word for word in command if word.split("=")[0] not in given] + list(overrides)
    process = subprocess.Popen(
        [sys.executable, "-m", cli, *words],
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environ},
        stdout=stdout, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    run_dirs = [word.removeprefix("run_dir=") for word in words if word.startswith("run_dir=")]
    return LiveRun(process, cwd / (run_dirs or words[1:])[0], environ[RUN_ID_VARIABLE])


@pytest.fixture
def start_run(traces: Traces, tmp_path: Path) -> Iterator[StartRun]:
    """`start_run(*overrides)`: a tiny run in the background; what is left of it is killed at the end."""
    started: list[LiveRun] = []

    def start(
        *overrides: str, command: tuple[str, ...] = ("train", *TINY), cli: str = "offpolicy.cli", **environ: str
    ) -> LiveRun:
        started.append(launch(tmp_path, traces.environ | environ, overrides, command, cli=cli))
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGKILL)
            run.process.communicate()


def run_to_end(directory: Path, *overrides: str, command: tuple[str, ...] = ("train", *TINY)) -> LiveRun:
    """A tiny run that succeeded."""
    traces = Traces()
    run = launch(directory, traces.environ, overrides, command)
    try:
        code, run.out, err = run.finish(100.0)
    finally:
        run.process.kill()
    assert (code, err) == (0, "")
    traces.assert_none()
    return run


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> LiveRun:
    """A run of SAC with FINISHED, for tests that only read it."""
    return run_to_end(tmp_path_factory.mktemp("finished"), *FINISHED)


@pytest.fixture
def finished_copy(finished_run: LiveRun, tmp_path: Path) -> Path:
    """The directory `run` of this test: a copy of the finished run, to resume or to damage."""
    return Path(shutil.copytree(finished_run.directory, tmp_path / "run"))


def killed_and_resumed(
    start_run: StartRun,
    *overrides: str,
    command: tuple[str, ...] = ("train", *TINY),
    before_resume: Callable[[], object] = lambda: None,
) -> tuple[Path, Path, str]:
    """Returns the last checkpoints of two runs, and the output of the first: one is uninterrupted, the other one killed
    at its second checkpoint and resumed.
    """
    whole = start_run(*overrides, "run_dir=whole", command=command)
    code, output, _ = whole.finish()
    assert code == 0
    again = kill_and_resume(start_run, whole, *overrides, command=command, at=2, before_resume=before_resume)
    return last_checkpoint(whole), again, output


def kill_and_resume(
    start_run: StartRun,
    whole: LiveRun,
    *overrides: str,
    command: tuple[str, ...] = ("train", *TINY),
    at: int = 1,
    before_resume: Callable[[], object] = lambda: None,
) -> Path:
    """Returns the last checkpoint of a run that is killed at checkpoint number `at`, counted from 1, and resumed; it
    comes as far as `whole`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(faults.VARIABLE, PACED)
        broken = start_run(*overrides, "run_dir=broken", command=command)
    broken.wait_until(lambda: len(broken.checkpoints()) >= at, timeout_s=40)
    broken.signal(signal.SIGKILL)
    broken.finish()
    assert broken.checkpoints()[-1] < whole.checkpoints()[-1], "killed too late to prove anything"
    before_resume()
    code, out, err = start_run(command=("resume", "broken")).finish()
    assert (code, err) == (0, "")
    assert "resuming at env step" in out
    assert "not bitwise" not in out
    assert broken.checkpoints()[-1] == whole.checkpoints()[-1]
    return last_checkpoint(broken)


def last_checkpoint(run: LiveRun) -> Path:
    return run.directory / "checkpoints" / run.checkpoints()[-1]


def replay_bytes(checkpoint: Path, ring: int = 0) -> bytes:
    """The rows of a ring in a checkpoint, whichever segments they are in."""
    state = json.loads((checkpoint / "state.json").read_text())
    first, end = state["replay_first"][ring], state["replay_end"][ring]
    paths = sorted(checkpoint.glob(f"replay-{ring}-*.f32"))
    content, begin = b"".join(path.read_bytes() for path in paths), int(paths[0].stem.rpartition("-")[2])
    return content[(first - begin) * len(content) // (end - begin) :]


def write_random_demos(path: Path, env_id: str) -> None:
    """Writes two episodes of random actions, for `replay.demos`."""
    spec = probe(EnvConfig(id=env_id)).spec
    found: list[Episode] = []
    run_episodes(
        random_actor(spec, 0),
        EnvConfig(id=env_id),
        episodes=2,
        seed=0,
        callbacks=EpisodeCallbacks(on_end=found.append, keeps_steps=True),
    )
    save_demos(path, found, spec)


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A tmpfs of a given size, not mounted yet."""

    path: Path

    def mount(self, size: str, files: int = 0) -> None:
        """`files`: as many as there may be, directories among them; 0: any number."""
        self.path.mkdir()
        options = f"size={size},nr_inodes={files}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.path)], check=True)

    def fill(self) -> None:
        """Writes until no block is free."""
        with contextlib.suppress(OSError), (self.path / "filler").open("wb", buffering=0) as filler:
            while filler.write(b"x" * 4096):
                pass

    def fill_with_files(self) -> None:
        """Makes empty files until there can be no other one."""
        with contextlib.suppress(OSError):
            for number in range(10**6):
                (self.path / f"filler-{number}").touch()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """`small_disk.mount(size)`: a file system at `disk`, unmounted at the end."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    if disk.path.is_mount():
        # Lazily: the run of a test that failed may still write there.
        subprocess.run(["umount", "-l", str(disk.path)], check=False)
