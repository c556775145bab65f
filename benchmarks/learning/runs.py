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
from benchmarks.learning.results import Raw, save_run
from benchmarks.learning.studies import Study, agree, decisive
from benchmarks.results import REPOSITORY, facts_now
from offpolicy.analysis.learning_curves import EVAL
from offpolicy.analysis.records import read_run
from offpolicy.config.run_files import read_config
from offpolicy.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, ConfigError
from offpolicy.runs import SUMMARY

DIRECTORY = REPOSITORY / "runs" / "learning-curves"
FINISHED, UNFINISHED, FAILED = "finished", "unfinished", "failed"
STOP_S = 120.0  # until a run that was asked to stop is killed: its last checkpoint remains


class StudyRun:
    """One seed of a study. Its directory stays, so that the next call goes on where this one stopped."""

    def __init__(
        self, study: Study, seed: int, raw: Raw | None, directory: Path | None = None, results_dir: Path | None = None
    ) -> None:
        """`raw`: what was written down of it before; `directory`: where all runs are, if not in `runs/` of the tree.

        `results_dir`: where results are written, if not with the published ones.
        """
        self.study, self.seed, self.results_dir = study, seed, results_dir
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
        return self.teacher is None or _read_json(self.teacher / SUMMARY).get("status") == "completed"

    def start(self) -> None:
        """Begins the run, or resumes it from its newest checkpoint; nothing where only its evaluation is left."""
        words = self._resumption() or self._beginning()
        if self._summary().get("status") == "completed":
            return
        (self.path / SUMMARY).unlink(missing_ok=True)  # of the start before, whose end it holds
        facts = facts_now("learning")
        self.raw["calls"].append({key: facts[key] for key in ("commit", "started", "hardware", "versions")})
        # Now, not at the end: the call after one that was killed must know what its checkpoints are of.
        save_run(self.study, self.seed, self.raw, self.results_dir)
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
        if not self.raw["calls"]:  # it was interrupted before it began
            return
        code = 0
        if self._process is not None:
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
        """`code` of its process; below zero, it was killed, and the next call goes on."""
        summary = self._summary()
        self.raw["evaluations"], recorded_s = _recorded(self.path)
        self.raw["wall_s"] = max(self.raw["wall_s"], recorded_s)  # a call that was killed has added nothing
        self.raw["status"] = UNFINISHED
        self.raw.pop("reason", None)
        if summary.get("status") == "completed":
            self.raw["final"] = self._final()
            self.raw["status"] = FINISHED
            self.raw["env_steps_per_sec"] = summary["rates"]["steps_per_sec"]
        elif summary.get("status") == FAILED:
            self.raw["status"], self.raw["reason"] = FAILED, summary["reason"]
        elif code > 0 and code not in {EXIT_INTERRUPTED, EXIT_TERMINATED}:
            self.raw["status"], self.raw["reason"] = FAILED, f"exit code {code}"

    def _summary(self) -> dict[str, Any]:  # Any: values of a summary
        return _read_json(self.path / SUMMARY)

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
        """The words that resume it; empty if there is nothing, or nothing of this configuration, to go on from.

        Without a call that is written down nobody knows the commit of what is there.
        """
        if not self.raw["calls"]:
            return []
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


def _recorded(path: Path) -> tuple[list[list[float]], float]:
    """Env steps and the mean return of each evaluation, and the seconds of all starts until the last record."""
    try:
        records = read_run(path)
    except ConfigError:
        return [], 0.0
    curve = records.curve(EVAL)
    evaluations = [[float(steps), float(value)] for steps, value in zip(curve.env_steps, curve.value, strict=True)]
    return evaluations, float(records.columns["wall_s"][-1])


def _read_json(path: Path) -> dict[str, Any]:  # Any: values of a summary
    return json.loads(path.read_text()) if path.is_file() else {}
