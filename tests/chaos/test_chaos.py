"""Two minutes of chaos; and proof that each invariant sees its violation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from offpolicy.replay.row_layout import IS_TERMINATED, OFFSET_SHIFT
from tests.chaos import invariants
from tests.chaos.__main__ import main
from tests.chaos.chain_env import Chain, wrong_rows
from tests.chaos.disturbances import Disturbance
from tests.chaos.ends import End
from tests.chaos.life import live
from tests.chaos.scenes import SCENES

pytestmark = pytest.mark.slow


@pytest.mark.mp
@pytest.mark.promise("no-torn-row", "no-silent-success", "no-orphan")
@pytest.mark.timeout(1200)
def test_two_minutes_of_chaos_violate_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = main(["--seed", "8", "--minutes", "2", "--directory", str(tmp_path)])
    assert code == 0, capsys.readouterr().out


def chain_rows(count: int) -> np.ndarray:
    env, rng, rows = Chain(), np.random.default_rng(0), []
    obs, _ = env.reset(seed=77)
    for _ in range(count):
        action = rng.uniform(-1.0, 1.0, 2).astype(np.float32)
        next_obs, reward, terminated, _, _ = env.step(action)
        rows.append(np.concatenate([obs, next_obs, action, [reward, terminated, False, 0.99]]))
        obs = env.reset()[0] if terminated else next_obs
    return np.array(rows, np.float32)


def test_a_row_mixed_of_two_is_seen() -> None:
    for columns in (slice(0, 4), slice(4, 8), slice(10, 11), slice(0, 7), slice(8, 10)):
        rows = chain_rows(50)
        rows[7, columns] = rows[12, columns]
        assert wrong_rows(rows) == 1


def write(path: Path, *records: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path.parent


def texts(found: object) -> str:
    return "|".join(found)  # type: ignore[arg-type]


def test_records_that_repeat_or_go_back_are_seen(tmp_path: Path) -> None:
    for steps, said in (
        ([(1, 0), (2, 0), (2, 1)], ""), ([(2, 1), (2, 1)], "1 times"), ([(5, 1), (3, 0), (4, 0), (3, 0)], "2 times"),
    ):  # fmt: skip
        write(tmp_path / "metrics.jsonl", *({"env_steps": one, "train/n_updates": two} for one, two in steps))
        found = texts(invariants.check_records(tmp_path))
        assert found == "" if not said else said in found
    (tmp_path / "metrics.jsonl").unlink()
    write(tmp_path / "episodes.jsonl", *({"env_steps": steps, "env_index": 1} for steps in (9, 5)))
    assert "environment 1" in texts(invariants.check_records(tmp_path))


def test_a_start_that_forgets_a_checkpoint_is_seen() -> None:
    old = End(0, "run directory: run\nresuming at env step 1,200\nlearner 0: cpu\n", "")
    assert texts(invariants.check_start(old, 1200)) == ""
    assert "checkpoint 1400 was there" in texts(invariants.check_start(old, 1400))
    anew = End(0, "run directory: run\nlearner 0: cpu\n", "")
    assert "began anew" in texts(invariants.check_start(anew, 1200))
    assert texts(invariants.check_start(anew, None)) == ""


def checkpoint_of(run: Path, rows: np.ndarray, env_steps: int) -> Path:
    place = run / "checkpoints/step-000000000020"
    place.mkdir(parents=True, exist_ok=True)
    slots = np.zeros((len(rows) + 1, 4 + 2 + 3), np.float32)  # observation, action, reward, discount, code
    slots[:-1, :4], slots[:-1, 4:7], slots[:-1, 7] = rows[:, :4], rows[:, 8:11], rows[:, 13]
    slots[-1, :4] = rows[-1, 4:8]
    slots.view(np.uint32)[:-1, -1] = (1 << OFFSET_SHIFT) + rows[:, 11].astype(np.uint32) * IS_TERMINATED
    slots[:12].tofile(place / "replay-0-000000000000000.f32")
    slots[12:-1].tofile(place / "replay-0-000000000000012.f32")
    slots[-1:].tofile(place / "ahead-0.f32")
    state = {"replay_first": [4], "replay_end": [20], "replay_written": [20], "env_steps": env_steps}
    (place / "state.json").write_text(json.dumps(state))
    (run / "config.yaml").write_text("env: {num_envs: 1}")
    return place


def test_rows_that_are_missing_twice_or_too_many_are_seen(tmp_path: Path) -> None:
    assert "names no rows" in texts(invariants.check_all_rows(tmp_path))
    rows = chain_rows(20)
    checkpoint_of(tmp_path, rows, 20)
    assert texts(invariants.check_all_rows(tmp_path)) == ""
    checkpoint_of(tmp_path, rows[:19], 20)
    assert "names rows 4 to 20, and 0 to 19 are saved" in texts(invariants.check_all_rows(tmp_path))
    checkpoint_of(tmp_path, rows, 21)
    assert "20 rows were written in 21 env steps" in texts(invariants.check_all_rows(tmp_path))
    rows[3:5] = rows[9:11]
    place = checkpoint_of(tmp_path, rows, 20)
    assert "1 of 20 rows of ring 0 are there twice" in texts(invariants.check_all_rows(tmp_path))
    (place / "replay-0-000000000000000.f32").unlink()
    assert "12 to 20 are saved" in texts(invariants.check_all_rows(tmp_path))


def test_an_end_that_differs_is_seen(tmp_path: Path) -> None:
    for run, content in (("one", b"a"), ("two", b"b")):
        place = tmp_path / run / "checkpoints/step-000000000020"
        place.mkdir(parents=True)
        (place / "learner.safetensors").write_bytes(content)
        (place / "rank-0.json").write_bytes(b"{}")
        checkpoint_of(tmp_path / run, chain_rows(20), 20)
    assert texts(invariants.check_same_end(tmp_path / "one", tmp_path / "one")) == ""
    seen = texts(invariants.check_same_end(tmp_path / "one", tmp_path / "two"))
    assert seen == "bitwise: learner.safetensors differs from a run without disturbance"


@pytest.mark.mp
@pytest.mark.timeout(600)
@pytest.mark.parametrize("action", ["ENOSPC", "kill"])
def test_an_attempt_that_cannot_be_moved_aside_is_moved_by_the_next_start(tmp_path: Path, action: str) -> None:
    lost = Disturbance("message.read@role=supervisor,n=1:kill")
    story = live(SCENES[0], tmp_path, [lost, Disturbance(f"run_dir.aside@role=supervisor,n=2:{action}")])
    assert story.violations == []
    assert [code for _, code in story.lives] == [-9, 2 if action == "ENOSPC" else -9, 0]
    assert story.num_fired == 2
    moved = {path.name: path.parent.name for path in (tmp_path / "run").glob("attempt-*/*")}
    assert {"config.yaml", "spaces.json", "train.log"} <= moved.keys()
    assert sorted(set(moved.values())) == ["attempt-0", "attempt-1"]
