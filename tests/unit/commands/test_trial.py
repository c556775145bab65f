"""A trial: what it asks of `offpolicy train`, and which records it measures by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpolicy.analysis.records import JSONL
from offpolicy.analysis.tuning import TrialFailed
from offpolicy.commands import jobs
from offpolicy.commands import trial as module
from offpolicy.commands.jobs import LocalJob
from offpolicy.commands.trial import Trial, trial_overrides
from offpolicy.config.overrides import load_config
from offpolicy.run_names import TRIAL

# In place of the command line: writes records of learning from the third on, then waits for the signal.
FAKE = """
import json, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
words = dict(word.split("=", 1) for word in sys.argv[3:])
import pathlib
run = pathlib.Path(words["run_dir"]); run.mkdir()
mode = words["fake"]
if mode == "fails":
    sys.exit("offpolicy: 1 configuration problem\\n  env.id: unknown")
with (run / "metrics.jsonl").open("w", buffering=1 << 20) as file:
    for index in range(60):
        record = {"env_steps": 50 * index, "wall_s": 0.5 * index, "train/n_updates": max(index - 2, 0)}
        record |= {"perf/steps_per_sec": 30.0 if index < 10 else 100.0, "cores/capacity": 2.0}
        record |= {"cores/others_ms_per_s": 500.0, "perf/learner_threads": 2, "rollout/ep_len_mean": 200.0}
        if index >= 12:
            record["eval/env_steps"] = 100 * (index // 4)
        if index == 9 and mode == "tunes":
            print("fastest: 2 threads", flush=True); time.sleep(0.5)
        file.write(json.dumps(record) + "\\n")
        if mode != "at once":
            file.flush(); time.sleep(0.02)
    file.write('{"env_steps": 1'); file.flush()
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _fake_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CHILD", FAKE)


def trial(tmp_path: Path, fake: str, *, is_tuning: bool = False, evaluates: bool = False) -> Trial:
    return Trial([f"fake={fake}"], tmp_path / "trial", is_tuning, evaluates)


def test_a_trial_does_not_become_the_latest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CHILD", f"import os, sys; sys.exit('marked as ' + os.environ[{TRIAL!r}])")
    with pytest.raises(TrialFailed, match="marked as 1"):
        trial(tmp_path, "learns").measure()


def test_records_before_the_run_has_tuned_itself_do_not_count(tmp_path: Path) -> None:
    measured = trial(tmp_path, "tunes", is_tuning=True).measure()
    assert set(measured.rates) == {100.0}
    assert (measured.busy, measured.threads, measured.episode_steps) == (0.25, 2, 200.0)
    assert measured.run is None  # there is no summary


def test_a_run_that_does_not_tune_itself_counts_from_its_second_record_of_learning_on(tmp_path: Path) -> None:
    assert 30.0 in trial(tmp_path, "learns").measure().rates


def test_a_run_that_tunes_itself_for_too_long_is_measured_by_its_newest_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_S", 10.0)  # of the records, which end at 29.5 s
    monkeypatch.setattr(module, "TUNING_S", -9.5)
    measured = trial(tmp_path, "at once", is_tuning=True).measure()
    assert set(measured.rates) == {100.0}
    assert len(measured.rates) == 20
    assert not measured.is_settled


def test_a_record_that_is_being_replaced_is_left_out_until_it_is_whole(tmp_path: Path) -> None:
    one = trial(tmp_path, "learns")
    whole = {"env_steps": 10, "wall_s": 1.0, "train/n_updates": 1, "perf/steps_per_sec": 30.0}
    path = one.directory / "run" / JSONL
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(whole) + "\n" + json.dumps(whole)[:-9] + "\n")
    assert one._records() == [whole]


def test_with_evaluations_the_rate_is_that_from_one_to_the_next(tmp_path: Path) -> None:
    measured = trial(tmp_path, "learns", evaluates=True).measure()
    assert len(measured.rates) >= 4
    assert set(measured.rates) == {100.0}  # 200 env steps in 2 s


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(TrialFailed, match=r"^env\.id: unknown$"):
        trial(tmp_path, "fails").measure()


def test_an_interrupted_trial_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[LocalJob] = []

    def interrupt(_: Trial, job: LocalJob) -> None:
        started.append(job)
        raise KeyboardInterrupt

    monkeypatch.setattr(Trial, "_follow", interrupt)
    with pytest.raises(KeyboardInterrupt):
        trial(tmp_path, "learns").measure()
    assert started[0].poll() is not None


def test_a_run_that_does_not_learn_in_time_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CHILD", "import time; time.sleep(60)")
    monkeypatch.setattr(module, "START_S", 0.2)
    with pytest.raises(TrialFailed, match=r"no update within 0\.2 s"):
        trial(tmp_path, "sleeps").measure()


@pytest.mark.parametrize(
    "words",
    [
        *(["total_timesteps=5000", "replay.capacity=3000"], ["algo=appo"], []),
        ["eval.video=true", "stop.reward=5", "stop.patience=3"],  # which need evaluations, and a trial may have none
    ],
)
def test_a_trial_is_a_valid_run_that_learns_the_same(words: list[str]) -> None:
    cfg = load_config(words)
    now, then = cfg.to_mapping(), load_config([*words, *trial_overrides(cfg, 0)]).to_mapping()
    changed = {key for key in now["algo"] if now["algo"][key] != then["algo"][key]}
    assert changed <= {"learning_starts"}
    assert all(now[key] == then[key] for key in ("env", "runner", "rollout", "collect", "threads", "seed", "device"))
    assert then["replay"]["capacity"] <= now["replay"]["capacity"]
    assert json.dumps(then["eval"]) != json.dumps(now["eval"])
