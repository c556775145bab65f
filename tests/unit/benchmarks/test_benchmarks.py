"""Each benchmark judges and shows what it measured as it says; `test_parts.py` runs them in their smallest form."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.check import Best, verdicts
from benchmarks.curves import main
from benchmarks.gemm import Products, hidden_products
from benchmarks.journal import Budget, Journal, Task
from benchmarks.learning.page import Judged, row
from benchmarks.learning.results import save_policies
from benchmarks.learning.studies import BY_KEY, STUDIES, Published, Study, agree
from benchmarks.page import render
from benchmarks.parts.measurement import measurements_of
from benchmarks.peers.contenders import overrides, settings_of_run
from benchmarks.peers.race import SETTLE_S, Repeat, rate_of, steady_ticks
from benchmarks.peers.settings import Settings, UnequalSettings, check_equal
from benchmarks.peers.tables import Done, ratios
from benchmarks.peers.workloads import WORKLOADS
from benchmarks.quiet import Usage, busy_ticks, wait_until_quiet
from benchmarks.results import all_entries
from offpolicy.config.overrides import load_config

STAT = """cpu  90 90 90 900 90 90 90 90 0 0
cpu0 1 2 3 400 50 6 7 8 0 0
cpu1 10 20 30 4000 500 60 70 80 0 0
intr 1 2 3
"""


def test_idle_and_waiting_for_a_disk_are_not_busy() -> None:
    assert busy_ticks(STAT, [0]) == 1 + 2 + 3 + 6 + 7 + 8
    assert busy_ticks(STAT, [0, 1]) == 11 * 27


def test_what_we_used_is_not_of_others() -> None:
    passed = Usage(14.0, 4.0, 60.0).since(Usage(10.0, 1.0, 54.0))
    assert passed.others_share(num_cores=2) == pytest.approx((6.0 - 3.0) / (2 * 4.0))


def test_the_wait_ends_with_the_first_quiet_look() -> None:
    shares = iter([0.9, 0.3, 0.05, 0.7])
    assert wait_until_quiet(lambda: next(shares), limit_s=60.0) == 0.05
    assert next(shares) == 0.7


def run(keys: str, settings: dict[str, Any], *, resume: bool = True) -> list[str]:
    """What is measured by a call that is asked for these tasks."""
    measured: list[str] = []
    tasks = [Task(key, 1.0, lambda key=key: measured.append(key)) for key in keys]
    Journal("toy", settings, [0], resume=resume).run(tasks, Budget(1e9, wait_s=0.0), lambda task, outcome: None)
    return measured


def test_a_task_is_done_once(results_directory: Path) -> None:
    assert run("ab", {"x": 1}) == ["a", "b"]
    assert run("abc", {"x": 1}) == ["c"]
    ((_, _, entry),) = all_entries(results_directory)
    assert list(entry["tasks"]) == ["a", "b", "c"]


@pytest.mark.usefixtures("results_directory")
def test_other_settings_begin_anew() -> None:
    run("a", {"x": 1})
    assert run("a", {"x": 2}) == ["a"]
    assert run("a", {"x": 1}, resume=False) == ["a"]


def one(value: float, share: float) -> dict[str, Any]:
    data = [{"part": "p", "name": "n", "unit": "ms", "samples": [value], "limit": None}]
    return {"others_share": share, "data": data}


def test_a_marked_round_is_left_out_of_medians() -> None:
    tasks = {"p/1": one(1.0, 0.0), "p/2": one(9.0, 0.06), "p/3": one(3.0, 0.05)}
    (found,) = measurements_of({"tasks": tasks})
    assert found.spread.median == 2.0
    assert found.has_quiet_round


BASE = {name: Best(ratio, "abc", "2026-11-22") for name, ratio in (("SAC, 1 thread", 2.0), ("TD3, 1 thread", 1.5))}


def test_a_ratio_that_is_11_percent_worse_is_told_with_the_numbers() -> None:
    (sentence,) = verdicts(BASE, {"SAC, 1 thread": 2.22, "TD3, 1 thread": 1.0})
    assert sentence == (
        "SAC, 1 thread: an update takes 2.22 x its GEMM floor, 11% more than 2.00 x at abc (2026-11-22); allowed 10%"
    )


def test_a_ratio_that_is_9_percent_worse_passes() -> None:
    assert verdicts(BASE, {"SAC, 1 thread": 2.18, "TD3, 1 thread": 1.5}) == []


def test_a_case_that_is_not_measured_any_more_does_not_pass() -> None:
    (sentence,) = verdicts(BASE, {"SAC, 1 thread": 2.0})
    assert sentence == "TD3, 1 thread: not measured, was 1.50 x its GEMM floor at abc"


def test_sac_makes_16_products_and_td3_11_and_a_half() -> None:
    assert hidden_products("sac", policy_delay=1) == Products(8.0, 5.0, 3.0)
    assert hidden_products("td3", policy_delay=2) == Products(6.0, 3.0, 2.5)
    assert hidden_products("sac", policy_delay=1).total == 16.0


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


SAC = Settings.of("sac")


def test_our_overrides_are_the_settings() -> None:
    for workload in WORKLOADS.values():
        wanted = workload.settings
        cfg = load_config(list(overrides(wanted))).to_mapping()
        found = settings_of_run(json.loads(json.dumps(cfg)))
        check_equal(wanted, found, env_steps=1000 + 1000 * wanted.num_envs, updates=1000)
        assert cfg["algo"]["utd"] == pytest.approx(1 / wanted.num_envs)


def test_every_difference_is_named() -> None:
    found = SAC.to_mapping() | {"batch_size": 64, "hidden_dims": [400, 300]}
    expected = r"batch_size: got 64, allowed 256; hidden_dims: got \[400, 300\], allowed \[256, 256\]$"
    with pytest.raises(UnequalSettings, match=expected):
        check_equal(SAC, found, env_steps=2000, updates=1000)


def test_the_rate_begins_when_learning_has_settled() -> None:
    ticks = [(500, 0.0), (1000, 1.0), (1001, 1.0 + SETTLE_S), (1101, 2.0 + SETTLE_S), (1301, 4.0 + SETTLE_S)]
    assert rate_of(steady_ticks(ticks, learning_starts=1000)) == pytest.approx(100.0)


def repeat(contender: str, number: int, rate: float | None, *, marked: bool = False) -> Done:
    return Done(contender, number, rate, None if rate else "exit code 1", "2", 0.4 if marked else 0.0, marked)


def test_ratios_are_of_one_round_and_the_faster_setting() -> None:
    repeats = [repeat("ours", 1, 100.0), repeat("sb3-1", 1, 50.0), repeat("sb3-2", 1, 80.0), repeat("ours", 2, 90.0)]
    assert ratios(repeats, ["ours", "sb3-1", "sb3-2"]) == {"offpolicy / faster SB3": {1: 1.25}}


PENDULUM = Study("small", ("algo=sac", "env=pendulum"), 10_000, 3, -180.0, (Published(10_000, -162.0, 3.0, "zoo"),))


CALL = {"commit": "abc", "started": "2026", "hardware": {"cpu": "A Cpu"}, "versions": {}}


def finished(mean: float, minutes: float = 2.0) -> dict[str, Any]:
    curve = [[5_000.0, mean - 50.0], [10_000.0, mean]]
    final = {"episodes": 100, "mean": mean, "std": 80.0}
    return {"status": "finished", "wall_s": 60.0 * minutes, "calls": [CALL], "evaluations": curve, "final": final}


@pytest.mark.slow
def test_every_study_is_a_configuration_that_exists() -> None:
    for study in STUDIES:
        config = study.resolved("seed=3")
        assert (config.seed, config.total_timesteps) == (3, study.env_steps)
        assert (config.threads.learner, config.threads.collector) == (1, 1)
        assert agree(study.configuration(), study.configuration())
        assert len(BY_KEY) == len(STUDIES)


def test_a_study_is_shown_with_spread_bar_and_the_policies_beside_it(results_directory: Path) -> None:
    save_policies("Pendulum-v1", {"random": {"mean": -1_229.0}, "constant": {"mean": -1_180.4}})
    one = Judged(PENDULUM, {1: finished(-150.0), 2: finished(-160.0, 5.0), 3: finished(-170.0)})
    cells = row(one)
    assert cells[:4] == ["`small`", "10k", "3", "-160.0 ± 10.0"]
    assert cells[4].startswith("-160.0 [-170.0, -150.0")
    assert cells[5:] == ["-180, reached", "-1,229", "-1,180", "2 to 5"]
    assert row(Judged(PENDULUM, {1: finished(-150.0)}))[-1] == "2"  # of one seed
    assert results_directory.is_dir()


FACTS = {
    "commit": "abc",
    "started": "2026-11-22T00",
    "hardware": {"cpu": "A Cpu", "cores": 2},
    "versions": {"torch": "2.13", "mujoco": "3.17"},
}


def outcome(data: Any) -> dict[str, Any]:
    return {"others_share": 0.01, "data": data}


def race_entry(rate: float) -> dict[str, Any]:
    rates = {"ours": rate, "sbx": 100.0}
    tasks = {f"sac-1/{key}/1": outcome(asdict(Repeat(key, 1, [], one, None, 1.0, "2"))) for key, one in rates.items()}
    settings = {"seconds": 12.0, "only": ["ours", "sbx", "sb3-1"]}
    return {"benchmark": "peers", "settings": settings, "tasks": tasks, **FACTS}


def test_the_newest_race_is_shown_with_ratio_command_and_machine() -> None:
    text = render([race_entry(90.0), race_entry(110.0)])
    assert "| offpolicy / SBX | 1.10 |" in text
    assert "`make bench-peers race=sac-1 seconds=12 only=ours,sb3-1,sbx`\nat commit abc, 2026-11-22." in text
    assert "A Cpu, 2 cores;\ntorch 2.13, mujoco 3.17." in text
    assert "| Stable-Baselines3, 1 thread | not measured |" in text
