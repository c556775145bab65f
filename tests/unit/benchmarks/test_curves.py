"""Learning curves alone, by the drawing code of `offpolicy compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.curves import main


def run_at(path: Path, values: list[float]) -> Path:
    path.mkdir()
    lines = [json.dumps({"env_steps": k, "wall_s": k, "rollout/ep_rew_mean": value}) for k, value in enumerate(values)]
    (path / "metrics.jsonl").write_text("\n".join(lines))
    return path


def test_the_ending_says_what_is_written(tmp_path: Path) -> None:
    words = [f"a={run_at(tmp_path / name, [1.0, 2.0, 3.0])}" for name in ("one", "two")]
    main([*words, "--out", str(tmp_path / "c.svg"), "--title", "teacher & student"])
    main([*words, "--out", str(tmp_path / "c.png")])
    svg = (tmp_path / "c.svg").read_text()
    assert "<svg" in svg
    assert "a (2 runs)" in svg
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_runs_give_the_same_png(tmp_path: Path) -> None:
    run = run_at(tmp_path / "one", [1.0, 2.0])
    for name in ("x.png", "y.png"):
        main([str(run), "--out", str(tmp_path / name)])
    assert (tmp_path / "x.png").read_bytes() == (tmp_path / "y.png").read_bytes()


def test_a_key_that_a_run_does_not_have_is_named(tmp_path: Path) -> None:
    run = run_at(tmp_path / "one", [1.0])
    with pytest.raises(ValueError, match="no eval/mean_reward"):
        main([str(run), "--key", "eval/mean_reward", "--out", str(tmp_path / "x.svg")])
