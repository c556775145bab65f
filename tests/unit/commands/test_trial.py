"""A trial: what it asks of `offpolicy train`, and which records it measures by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpolicy.analysis.tuning import TrialFailed
from offpolicy.commands import jobs
from offpolicy.commands.trial import Trial, trial_overrides
from offpolicy.config.overrides import load_config

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


def test_records_before_the_run_has_tuned_itself_do_not_count(tmp_path: Path) -> None:
    measured = trial(tmp_path, "tunes", is_tuning=True).measure()
    assert set(measured.rates) == {100.0}
    assert (measured.busy, measured.threads, measured.episode_steps) == (0.25, 2, 200.0)
    assert measured.run is None  # there is no summary


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(TrialFailed, match=r"^env\.id: unknown$"):
        trial(tmp_path, "fails").measure()


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
