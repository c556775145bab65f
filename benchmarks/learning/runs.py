"""The runs of studies: each is begun, stopped with a checkpoint, resumed, evaluated and written down.

`benchmarks/results/learning/<study>.json` holds the raw curve of every seed.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.children import environment, offpolicy
from benchmarks.learning.studies import Study, agree
from benchmarks.results import REPOSITORY, facts_now
from offpolicy.analysis.learning_curves import EVAL
from offpolicy.analysis.records import read_run
from offpolicy.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, ConfigError
from offpolicy.runs import SUMMARY

Raw = dict[str, Any]  # Any: the JSON data of one run
NOTHING_LEARNT = "nothing-learnt"
DIRECTORY = REPOSITORY / "runs" / "learning-curves"
FINISHED, UNFINISHED, FAILED = "finished", "unfinished", "failed"
STOP_S = 120.0  # until a run that was asked to stop is killed: its last checkpoint remains


def path_of(name: str, directory: Path | None = None) -> Path:
    """Returns where the data of a study are: in `directory`, or with the published results."""
    return (directory or results.RESULTS / "learning") / f"{name}.json"


def read_file(name: str, directory: Path | None = None) -> Raw:
    """Returns the data of a file; empty where there is none."""
    path = path_of(name, directory)
    return json.loads(path.read_text()) if path.is_file() else {}


def runs_of(study: Study, directory: Path | None = None) -> dict[int, Raw]:
    """Returns the runs of a study by seed; none of another configuration than the study has today."""
    found = read_file(study.key, directory)
    if not agree(found.get("configuration", {}), study.configuration()):
        return {}
    return {int(seed): run for seed, run in found.get("runs", {}).items()}


def save_run(study: Study, seed: int, run: Raw, directory: Path | None = None) -> None:
    """Writes the file of a study with this run in place of what it had of the seed."""
    runs = {**runs_of(study, directory), seed: run}
    by_seed = {str(number): runs[number] for number in sorted(runs)}
    content = {"command": study.command, "configuration": study.configuration(), "runs": by_seed}
    results.write_text(path_of(study.key, directory), results.one_per_line(content, "runs") + "\n")


def policies_of(env_id: str) -> dict[str, Raw]:
    """Returns what policies that learn nothing earn in an environment, random and constant; empty if not measured."""
    found: dict[str, Raw] = read_file(NOTHING_LEARNT).get(env_id, {})
    return found


class StudyRun:
    """One seed of a study. Its directory stays, so that the next call goes on where this one stopped."""

    def __init__(self, study: Study, seed: int, raw: Raw | None, directory: Path | None = None) -> None:
        """`raw`: what was written down of it before; `directory`: of runs and results, if not where they are kept."""
        self.study, self.seed, self.directory = study, seed, directory
        self.path = (directory or DIRECTORY) / study.key / f"seed-{seed}"
        self.raw: Raw = raw or {"status": UNFINISHED, "wall_s": 0.0, "calls": []}
        self._process: subprocess.Popen[bytes] | None = None
        self.name = f"{study.key}/{seed}"
        # The run that teaches this one; None: nothing does.
        self.teacher = self.path.parent.parent / study.teacher / self.path.name if study.teacher else None

    def is_ready(self) -> bool:
        """False as long as the run that teaches this one has not ended."""
        return self.teacher is None or _summary(self.teacher).get("status") == "completed"

    def start(self) -> None:
        """Begins the run, or resumes it from its newest checkpoint; nothing where only its evaluation is left."""
        can_resume = self.raw["calls"] and any((self.path / "checkpoints").glob("step-*"))
        words = ["resume", str(self.path)] if can_resume else self._beginning()
        if _summary(self.path).get("status") == "completed":
            return
        (self.path / SUMMARY).unlink(missing_ok=True)  # of the start before, whose end it holds
        facts = facts_now("learning")
        self.raw["calls"].append({key: facts[key] for key in ("commit", "started", "hardware", "versions")})
        # Now, not at the end: the call after one that was killed must know what its checkpoints are of.
        save_run(self.study, self.seed, self.raw, self.directory)
        self._began_s = time.monotonic()
        with open(self.path.with_suffix(".log"), "ab") as log:
            self._process = subprocess.Popen(
                offpolicy(*words), stdout=log, stderr=subprocess.STDOUT, cwd=REPOSITORY, env=environment()
            )

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
            self._process = None
            self.raw["wall_s"] += time.monotonic() - self._began_s
        summary = _summary(self.path)
        self.raw["evaluations"], recorded_s = _recorded(self.path)
        self.raw["wall_s"] = max(self.raw["wall_s"], recorded_s)  # a call that was killed has added nothing
        self.raw["status"] = UNFINISHED
        self.raw.pop("reason", None)
        if summary.get("status") == "completed":
            self.raw |= {"final": self._final(), "env_steps_per_sec": summary["rates"]["steps_per_sec"]}
            self.raw["status"] = FINISHED
        elif summary.get("status") == FAILED or (code > 0 and code not in {EXIT_INTERRUPTED, EXIT_TERMINATED}):
            self.raw |= {"status": FAILED, "reason": summary.get("reason", f"exit code {code}")}

    def _final(self) -> Raw:
        """Returns what the deterministic policy earns in episodes that no evaluation of the run has seen."""
        subprocess.run(
            offpolicy("eval", str(self.path), *self.study.final_evaluation(self.seed)),
            check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL, env=environment(OMP_NUM_THREADS="1"),
        )  # fmt: skip
        found = json.loads((self.path / "eval.jsonl").read_text().splitlines()[-1])
        measured = {"net_rotation": found["mean_net_rotation"]} if "mean_net_rotation" in found else {}
        return {"episodes": found["episodes"], "mean": found["mean_reward"], "std": found["std_reward"], **measured}

    def _beginning(self) -> list[str]:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.raw = {"status": UNFINISHED, "wall_s": 0.0, "calls": []}
        teacher = [f"teacher={self.teacher}"] if self.teacher else []
        return ["train", f"run_dir={self.path}", *self.study.arguments(self.seed), *teacher]


def _recorded(path: Path) -> tuple[list[list[float]], float]:
    """Returns env steps and mean return of each evaluation, and the seconds of all starts until the last record."""
    try:
        records = read_run(path)
    except ConfigError:
        return [], 0.0
    curve = records.curve(EVAL)
    evaluations = [[float(steps), float(value)] for steps, value in zip(curve.env_steps, curve.value, strict=True)]
    return evaluations, float(records.columns["wall_s"][-1])


def _summary(path: Path) -> dict[str, Any]:  # Any: values of a summary
    return json.loads((path / SUMMARY).read_text()) if (path / SUMMARY).is_file() else {}
