"""One run through several disturbed lives to its goal: started again by the same command until it is done."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import invariants
from tests.chaos.disturbances import Disturbance, Signalled, draw_lives
from tests.chaos.ends import End, Hit
from tests.chaos.scenes import Scene
from tests.conftest import REPOSITORY, Traces
from tests.faults import ONCE_VARIABLE, VARIABLE

GONE_S = 5.0  # I4: from the end of a run until no process of it is left
QUIET_S = 40.0  # without any sign of life: an operator sends SIGTERM
STOP_S = 50.0  # from that SIGTERM to the end
LIFE_S = 240.0  # of a life, on a loaded machine
ENDING = re.compile(r":(kill|exit:\d+)$")  # a fault that ends the process it happens in
PAUSE_S = 5.0  # between two looks: nothing ran at all, and no deadline counts it


@dataclass(slots=True)
class Story:
    """What was done to a run and what came of it."""

    scene: Scene
    lives: list[tuple[Disturbance, int]] = field(default_factory=list)
    num_fired: int = 0  # injected faults that happened
    num_signals: int = 0  # that were sent
    num_kills: int = 0  # by signal or fault
    num_resumes: int = 0
    violations: list[str] = field(default_factory=list)
    is_done: bool = False
    is_bitwise: bool = True

    def __str__(self) -> str:
        lives = " | ".join(f"{disturbance} -> exit {code}" for disturbance, code in self.lives)
        return f"{self.scene.name}: {lives}"


def live(scene: Scene, directory: Path, disturbances: list[Disturbance]) -> Story:
    """Runs the scene in `directory`, one disturbance per life and none in the last ones, until it is done."""
    story = Story(scene)
    for disturbance in [*disturbances, Disturbance(), Disturbance()]:
        before = invariants.newest_checkpoint(directory / "run")
        life = Life(scene, directory, disturbance, len(story.lives))
        end = life.run()
        story.lives.append((disturbance, end.code))
        story.violations += life.violations
        story.num_fired += len(life.fired)
        story.num_signals += len(life.sent)
        kills = [*(hit.number == signal.SIGKILL for hit in life.sent), *(one.endswith(":kill") for one in life.fired)]
        story.num_kills += sum(kills)
        story.num_resumes += "resuming at env step" in end.stdout
        story.violations += check_life(scene, directory / "run", end, before)
        # A console that refuses a line gets no other one: what it would have said is not known.
        story.is_bitwise &= "not bitwise" not in end.stdout and not end.has_lost_output
        if end.code == 0 and not end.is_supervisor_hit and invariants.newest_checkpoint(directory / "run") is not None:
            story.is_done = True
            story.violations += invariants.check_residue(directory / "run", end.stdout)
            if scene.has_rows:
                story.violations += invariants.check_all_rows(directory / "run")
            return story
        if end.code == 66:
            break
    story.violations.append("I6: the same command, undisturbed, does not reach the goal: " + end.stderr[-300:])
    return story


def check_life(scene: Scene, run: Path, end: End, before: int | None) -> Iterator[str]:
    """Every invariant that can be read from the directory and the output."""
    yield from invariants.check_start(end, before)
    yield from invariants.check_end(run, end, scene.total)
    yield from invariants.check_records(run)
    if scene.has_rows:
        yield from invariants.check_rows(run)
    after = invariants.newest_checkpoint(run)
    if before is not None and (after is None or after < before):
        yield f"I2: the newest checkpoint goes from {before} back to {after}"


class Life:
    """A process of the command line, with its faults and the signals that come to it."""

    def __init__(self, scene: Scene, directory: Path, disturbance: Disturbance, number: int) -> None:
        self._scene, self._directory, self._disturbance = scene, directory, disturbance
        self.violations = list[str]()
        self._once = directory / f"fired-{number}"
        self._once.mkdir(parents=True)
        self._traces = Traces()
        self._out, self._err = directory / f"out-{number}", directory / f"err-{number}"
        environ = {**os.environ, **self._traces.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        if disturbance.faults:
            environ |= {VARIABLE: disturbance.faults, ONCE_VARIABLE: str(self._once)}
        command = [sys.executable, "-m", "offpolicy.cli", *scene.command("run")]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                command, cwd=directory, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        self._start_s = time.monotonic()
        self._is_supervisor_hit, self._is_term_sent = False, False
        self.sent, self._early = list[Hit](), set[int]()
        self._stopped: list[tuple[float, int]] = []

    def run(self) -> End:
        """Waits for the end, sends the signals meanwhile, and checks that nothing is left."""
        try:
            self._watch()
        finally:
            self._kill_all()
        code = self._process.wait()
        if any("role=supervisor" in fault and ENDING.search(fault) for fault in self.fired):
            self._is_supervisor_hit = True
        out, err = (path.read_text(errors="replace") for path in (self._out, self._err))
        options = self._scene.words_by_key()
        return End(
            code, out, err, self.fired, tuple(self.sent), frozenset(self._early), self._is_supervisor_hit, options
        )

    @property
    def fired(self) -> tuple[str, ...]:
        """The faults that have happened by now."""
        faults = self._disturbance.faults.split(";")
        return tuple(faults[int(name)] for name in sorted(os.listdir(self._once)))

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._start_s

    def _watch(self) -> None:
        waiting = list(self._disturbance.signals)
        sign, since_s, last_s = self._sign_of_life(), 0.0, 0.0
        while self._process.poll() is None:
            if self._elapsed_s - last_s > PAUSE_S:
                self._start_s += self._elapsed_s - last_s
            now_s = last_s = self._elapsed_s
            while waiting and waiting[0].after_s <= now_s:
                self._send(waiting.pop(0))
            for due_s, pid in [one for one in self._stopped if one[0] <= now_s]:
                self._stopped.remove((due_s, pid))
                _kill(pid, signal.SIGCONT)
            if (newer := self._sign_of_life()) != sign:
                sign, since_s = newer, now_s
            if not self._is_in_time(now_s, since_s):
                return
            time.sleep(0.05)
        self._check_gone()

    def _is_in_time(self, now_s: float, since_s: float) -> bool:
        """False once the run is given up; a run that stands still is sent SIGTERM first, as an operator would."""
        if now_s - since_s > QUIET_S and not self._is_term_sent:
            self._is_term_sent = True
            self._term_s = now_s
            if not any(map(may_hang, self.fired)):
                self.violations.append(f"I8: no sign of life for {QUIET_S:g} s, and nothing may hang for so long")
            self.sent.append(Hit(signal.SIGTERM, "supervisor"))
            self._process.send_signal(signal.SIGTERM)
        is_late = self._is_term_sent and now_s - self._term_s > STOP_S
        if is_late or now_s > LIFE_S:
            what = f"no end {STOP_S:g} s after SIGTERM" if is_late else f"no end after {LIFE_S:g} s"
            self.violations.append(f"I8: {what}; the last lines: {self._out.read_text()[-200:]!r}")
            self._is_supervisor_hit = True
            return False
        return True

    def _sign_of_life(self) -> tuple[int, ...]:
        """Sizes of what a run writes: they change as long as it does anything."""
        run = self._directory / "run"
        paths = [run / "metrics.jsonl", run / "train.log", run / "episodes.jsonl", self._out, self._err]
        return tuple(path.stat().st_size if path.exists() else -1 for path in paths)

    def _send(self, one: Signalled) -> None:
        """Sends a signal to one of the processes that live now, or to all."""
        pids = sorted(self._traces.processes())
        chosen = pids if one.is_for_all else pids[int(one.victim * len(pids)) :][:1]
        for pid in chosen:
            pause_s = one.pause_s if one.number == signal.SIGSTOP else 0.0
            self.sent.append(Hit(one.number, role_of(pid, self._process.pid), pause_s))
            if pid == self._process.pid and one.number == signal.SIGKILL:
                self._is_supervisor_hit = True
            _kill(pid, one.number)
            if one.number == signal.SIGSTOP:
                self._stopped.append((self._elapsed_s + one.pause_s, pid))
        # Before it handles signals, a process dies of them as any program does.
        if self._process.pid in chosen and "starting" not in self._out.read_text(errors="replace"):
            self._early.add(one.number)

    def _check_gone(self) -> None:
        try:
            self._traces.assert_none(GONE_S)
        except AssertionError as error:
            names = [comm_of(pid) for pid in self._traces.processes()]
            self.violations.append(f"I4: {error} after {GONE_S:g} s: {names}".replace("\n", " "))

    def _kill_all(self) -> None:
        for pid in self._traces.processes():
            _kill(pid, signal.SIGKILL)


def may_hang(fault: str) -> bool:
    """True for a hang that no deadline within a life ends: of a learner, or at a start.

    An evaluator has the time of a start at every evaluation.
    """
    is_slow = re.search(r"role=(learner|evaluator)", fault) is not None or fault.startswith("child.start")
    return fault.endswith(":hang") and is_slow


def role_of(pid: int, supervisor: int) -> str:
    """The role of a process, or of the one that started it: a worker dies for its collector."""
    if pid == supervisor:
        return "supervisor"
    with contextlib.suppress(OSError):
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        names = [name.split("-")[1] for name in (comm_of(pid), comm_of(parent)) if name.startswith("op-")]
        return names[0] if names else "child"
    return "gone"


def comm_of(pid: int) -> str:
    """The name of a process, which may be gone by now."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return "gone"


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class References:
    """Ends of undisturbed runs, one per scene, made when they are first asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def of(self, scene: Scene) -> Path:
        """The run directory of the scene without disturbance."""
        directory = self._directory / f"reference-{scene.name}"
        if not directory.exists():
            story = live(scene, directory, [])
            assert story.is_done, story.violations
        return directory / "run"


def chaos(
    seed: int, minutes: float, directory: Path, scenes: tuple[Scene, ...], say: Callable[[str], None]
) -> list[Story]:
    """Lets chaos loose for some minutes; returns all stories. Those with violations keep their directory."""
    rng, references, stories = random.Random(seed), References(directory), list[Story]()
    end_s = time.monotonic() + 60.0 * minutes
    while time.monotonic() < end_s:
        number = len(stories)
        own = random.Random(f"{seed}-{number}")  # of a story alone: `only` repeats it
        scene = scenes[number % len(scenes)] if number < len(scenes) else rng.choice(scenes)
        stories.append(run_story(scene, own, directory / f"run-{number}", references))
        story = stories[-1]
        say(f"{number}: {story}" + "".join(f"\n   VIOLATION {text}" for text in story.violations))
        if not story.violations:
            shutil.rmtree(directory / f"run-{number}")
    return stories


def run_story(scene: Scene, rng: random.Random, directory: Path, references: References) -> Story:
    """One story: drawn, lived, and where it can be, compared with the undisturbed run."""
    story = live(scene, directory, draw_lives(rng, scene.words))
    if story.is_done and story.is_bitwise and scene.is_bitwise:
        story.violations += invariants.check_same_end(directory / "run", references.of(scene))
    return story
