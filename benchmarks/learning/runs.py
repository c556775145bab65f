"""One run of a study in a process of its own: begun, stopped with a checkpoint, resumed, evaluated and written down."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import IO, Any

from benchmarks.children import environment, offpolicy_program
from benchmarks.learning.results import Raw
from benchmarks.learning.studies import Study, agree, decisive
from benchmarks.results import REPOSITORY, facts_now
from offpolicy.analysis.learning_curves import EVAL
from offpolicy.analysis.records import read_run
from offpolicy.config.schema import read_config
from offpolicy.errors import ConfigError

DIRECTORY = REPOSITORY / "runs" / "learning-curves"
FINISHED, UNFINISHED, FAILED = "finished", "unfinished", "failed"
STOP_S = 120.0  # until a run that was asked to stop is killed: its last checkpoint remains


class StudyRun:
    """One seed of a study. Its directory stays, so that the next call goes on where this one stopped."""

    def __init__(self, study: Study, seed: int, raw: Raw | None, directory: Path | None = None) -> None:
        """`raw`: what was written down of it before; `directory`: where all runs are, if not in `runs/` of the tree."""
        self.study, self.seed = study, seed
        self.path = (directory or DIRECTORY) / study.key / f"seed-{seed}"
        self.raw: Raw = raw or {"status": UNFINISHED, "wall_s": 0.0, "calls": []}
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes]

    @property
    def name(self) -> str:
        """Of the study and the seed."""
        return f"{self.study.key}/{self.seed}"

    @property
    def teacher(self) -> Path | None:
        """The directory of the run that teaches this one; None: nothing does."""
        return self.path.parent.parent / self.study.teacher / self.path.name if self.study.teacher else None

    def is_ready(self) -> bool:
        """False as long as the run that teaches this one has not ended."""
        return self.teacher is None or _read_json(self.teacher / "summary.json").get("status") == "completed"

    def start(self) -> None:
        """Begins the run, or resumes it from its newest checkpoint."""
        words = self._resumption() or self._beginning()
        facts = facts_now("learning")
        self.raw["calls"].append({key: facts[key] for key in ("commit", "started", "hardware", "versions")})
        self._began_s = time.monotonic()
        self._log = open(self.path.with_suffix(".log"), "ab")  # noqa: SIM115  # closed when the process has ended
        self._process = subprocess.Popen(
            [*offpolicy_program(), *words], stdout=self._log, stderr=subprocess.STDOUT, cwd=REPOSITORY,
            env=environment(PYTHONPATH=str(REPOSITORY)),
        )  # fmt: skip

    def has_ended(self) -> bool:
        """True once its process has."""
        return self._process is None or self._process.poll() is not None

    def stop(self) -> None:
        """Asks it to save a checkpoint and end; not by SIGINT, which a run in the background ignores."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def finish(self) -> None:
        """Waits until it has ended, evaluates a policy that is done, and notes what is known."""
        if self._process is None:
            return
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._log.close()
        self._process = None
        self.raw["wall_s"] += time.monotonic() - self._began_s
        self._note(code)

    def _note(self, code: int) -> None:
        summary = _read_json(self.path / "summary.json")
        self.raw["evaluations"] = _curve(self.path)
        self.raw["status"] = UNFINISHED
        if summary.get("status") == "completed":
            self.raw["final"] = self._final()
            self.raw["status"] = FINISHED
            self.raw["env_steps_per_sec"] = summary["rates"]["steps_per_sec"]
        elif summary.get("status") == FAILED or code not in {0, 130, 143}:
            self.raw["status"], self.raw["reason"] = FAILED, summary.get("reason", f"exit code {code}")

    def _final(self) -> Raw:
        """The deterministic policy over episodes that no evaluation of the run has seen."""
        words = ["eval", str(self.path), *self.study.final_evaluation(self.seed)]
        subprocess.run(
            [*offpolicy_program(), *words], check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL,
            env=environment(PYTHONPATH=str(REPOSITORY), OMP_NUM_THREADS="1"),
        )  # fmt: skip
        line = (self.path / "eval.jsonl").read_text().splitlines()[-1]
        found = json.loads(line)
        measured = {"net_rotation": found["mean_net_rotation"]} if "mean_net_rotation" in found else {}
        return {"episodes": found["episodes"], "mean": found["mean_reward"], "std": found["std_reward"], **measured}

    def _resumption(self) -> list[str]:
        """The words that resume it; empty if there is nothing, or nothing of this configuration, to go on from."""
        try:
            is_same = agree(decisive(read_config(self.path)), self.study.configuration())
        except ConfigError:
            is_same = False
        return ["resume", str(self.path)] if is_same and any((self.path / "checkpoints").glob("step-*")) else []

    def _beginning(self) -> list[str]:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.raw = {"status": UNFINISHED, "wall_s": 0.0, "calls": []}
        teacher = [f"teacher={self.teacher}"] if self.teacher else []
        return ["train", f"run_dir={self.path}", *self.study.arguments(self.seed), *teacher]


def _curve(path: Path) -> list[list[float]]:
    """Env steps and the mean return of each evaluation."""
    try:
        curve = read_run(path).curve(EVAL)
    except ConfigError:
        return []
    return [[float(steps), float(value)] for steps, value in zip(curve.env_steps, curve.value, strict=True)]


def _read_json(path: Path) -> dict[str, Any]:  # Any: values of a summary
    return json.loads(path.read_text()) if path.is_file() else {}
