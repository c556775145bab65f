"""How a run ended, in the words and numbers of its summary."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from offpolicy.config.schema import RunConfig
from offpolicy.launch.outcome import Outcome, already_complete, is_complete, note_what_ran, outcome_of, print_failure
from offpolicy.logger.record import RunHeader
from offpolicy.processes.supervisor import Failure
from offpolicy.types import EvalResult

CRASH = Failure("learner", 1, 4711, 800, 1, "RuntimeError: boom", "Traceback ...\nRuntimeError: boom\n")
HANG = Failure("collector", 0, 4712, 800, 70, "no progress for 68 s")


@pytest.mark.promise("exit-codes", "no-silent-success")
@pytest.mark.parametrize(
    ("monitored", "supervised", "outcome"),
    [
        ({"is_complete": True}, {}, Outcome("completed", 0, "1,200 env steps done")),
        (
            {"saved_steps": [400, 900]},
            {"signal_code": 130},
            Outcome("interrupted", 130, "stopped by a signal; checkpoint saved at env step 900"),
        ),
        ({}, {"signal_code": 143}, Outcome("interrupted", 143, "stopped by a signal; nothing saved")),
        ({}, {"failure": CRASH}, Outcome("failed", 1, "learner 1: RuntimeError: boom")),
        ({"is_complete": True}, {"failure": CRASH}, Outcome("failed", 1, "learner 1: RuntimeError: boom")),
        # A child that dies of the signal itself is no failure; one that hangs in the stop is.
        ({}, {"failure": CRASH, "signal_code": 130}, Outcome("interrupted", 130, "stopped by a signal; nothing saved")),
        ({}, {"failure": HANG, "signal_code": 130}, Outcome("failed", 70, "collector 0: no progress for 68 s")),
        ({"stopped_by": 2}, {}, Outcome("interrupted", 143, "the host of rank 2 asked to stop; nothing saved")),
        ({}, {}, Outcome("failed", 1, "the learner left before the budget was spent")),
    ],
)
def test_every_end_has_a_status_a_code_and_a_reason(
    monitored: dict[str, Any], supervised: dict[str, Any], outcome: Outcome
) -> None:
    snapshot = SimpleNamespace(env_steps=1200)
    facts: dict[str, Any] = {"is_complete": False, "saved_steps": [], "stopped_by": None, "early_stop": ""} | monitored
    monitor: Any = SimpleNamespace(snapshot=lambda: snapshot, **facts)
    supervisor: Any = SimpleNamespace(**({"failure": None, "signal_code": 0} | supervised))
    assert outcome_of(supervisor, monitor, 1200) == outcome


EARLY = {"total_timesteps": 5000, "algo": {"learning_starts": 100}}


def test_a_run_that_has_stopped_early_goes_on_only_with_other_values(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"status": "completed", "env_steps": 901}')
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(EvalResult(900, 6.0, 0.5, 9.0, 3)._asdict()))
    run: Any = SimpleNamespace(path=tmp_path, checkpoint=SimpleNamespace(env_steps=901))
    for reward, is_over in ((5.0, True), (6.5, False), (None, False)):
        cfg = RunConfig.from_mapping(EARLY | {"stop": {"reward": reward}})
        assert is_complete(run, cfg) == is_over
    said = already_complete(tmp_path, 901, RunConfig.from_mapping(EARLY | {"stop": {"reward": 5.0}}))
    assert "already complete: stopped early: mean return 6.00" in said
    assert said.endswith("stop.reward=null total_timesteps=5000")


def test_what_ran_stands_beside_what_was_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("threads:\n  learner: auto\n")
    header = RunHeader(algo="sac", env_id="Pendulum-v1", seed=1, mode="overlap", total_timesteps=1000)
    os.utime(file, (1e9, 1e9))
    note_what_ran(file, header)  # it ended before the learner said anything
    assert "#" not in file.read_text()
    for threads in (1, 2):  # the second time after a resume
        note_what_ran(file, replace(header, learner_threads=threads))
    assert file.read_text().splitlines() == [
        "threads:", "  learner: auto", "# ran: threads.learner=2 threads.collector=1 collect.mode=overlap"
    ]  # fmt: skip
    assert yaml.safe_load(file.read_text()) == {"threads": {"learner": "auto"}}
    assert file.stat().st_mtime == 1e9  # that of the start: `offpolicy list` used to show the order of ends
    note_what_ran(tmp_path / "missing" / "config.yaml", replace(header, learner_threads=2))
    file.write_bytes(b"seed: 1  # caf\xe9\n")  # what an editor has made of it
    note_what_ran(file, replace(header, learner_threads=2))
    assert file.read_bytes() == b"seed: 1  # caf\xe9\n"


@pytest.mark.promise("last-words")
def test_the_last_line_on_stderr_names_the_process_that_failed(capsys: pytest.CaptureFixture[str]) -> None:
    print_failure(CRASH, Path("/a/run"))
    *traceback, log, last = capsys.readouterr().err.splitlines()
    assert traceback == ["Traceback ...", "RuntimeError: boom"]
    assert last == "offpolicy: learner 1 (pid 4711) failed at env step 800: RuntimeError: boom"
    assert log == "offpolicy: what the processes printed: /a/run/train.log"
    print_failure(None, Path("/a/run"))
    assert capsys.readouterr().err == ""


def test_of_an_environment_its_own_traceback_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_failure(replace(HANG, cause="EnvFailure: step 7 raised\nTraceback\n  in step"), Path("/a"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["Traceback", "  in step"]
    assert lines[-1].endswith("EnvFailure: step 7 raised")


def test_only_a_run_that_ended_as_it_should_is_complete(tmp_path: Path) -> None:
    for done, ended_at, status, is_over in (
        (1000, 1000, "completed", True),
        (999, 999, "completed", False),
        (1000, 1000, "interrupted", False),
        (None, 1000, "completed", False),
        (1000, 500, "completed", False),  # it went on from there, and was killed after its last checkpoint
    ):
        (tmp_path / "summary.json").write_text(f'{{"status": "{status}", "env_steps": {ended_at}}}')
        checkpoint = None if done is None else SimpleNamespace(env_steps=done)
        run: Any = SimpleNamespace(path=tmp_path, checkpoint=checkpoint)
        cfg = RunConfig.from_mapping({"total_timesteps": 1000, "algo": {"learning_starts": 100}})
        assert is_complete(run, cfg) == is_over


def test_what_to_type_next_trains_on_from_what_the_run_has_done(tmp_path: Path) -> None:
    said = already_complete(tmp_path, 10_000, RunConfig.from_mapping(EARLY))  # 10000 would be complete too
    assert "already complete: 10,000 of 5,000 env steps" in said
    assert said.endswith("total_timesteps=20000")
