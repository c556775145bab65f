"""Each benchmark judges and shows what it measured as it says; `test_parts.py` runs them in their smallest form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.check import Best, best_results, verdicts
from benchmarks.journal import Journal, Task, Usage, busy_ticks
from benchmarks.learning.__main__ import summary
from benchmarks.learning.runs import runs_of, save_run
from benchmarks.learning.studies import BY_KEY, STUDIES, Published, Study, agree
from benchmarks.measurement import measurements_of
from benchmarks.parts.updates import Products, hidden_products
from benchmarks.peers.__main__ import Repeat, ratios
from benchmarks.peers.contenders import (
    WORKLOADS,
    Settings,
    Tick,
    UnequalSettings,
    check_equal,
    overrides,
    settings_of_run,
)
from benchmarks.peers.race import SETTLE_S, steady_ticks
from benchmarks.results import all_entries, machine_kind
from offpolicy.config.overrides import load_config

STAT = "cpu  90 90 90 900 90 90 90 90 0 0\ncpu0 1 2 3 400 50 6 7 8 0 0\ncpu1 10 20 30 4000 500 60 70 80 0 0\n"


def test_idle_cores_are_not_busy_and_what_we_used_is_not_of_others() -> None:
    assert busy_ticks(STAT, [0]) == 1 + 2 + 3 + 6 + 7 + 8
    assert busy_ticks(STAT, [0, 1]) == 11 * 27
    passed = Usage(14.0, 4.0, 60.0).since(Usage(10.0, 1.0, 54.0))
    assert passed.others_share(num_cores=2) == pytest.approx((6.0 - 3.0) / (2 * 4.0))


def run(keys: str, settings: dict[str, Any], budget_s: float = 1e9) -> list[str]:
    """Returns what is measured by a call that is asked for these tasks; with a budget it goes on."""
    measured: list[str] = []
    tasks = [Task(key, 1.0, lambda key=key: measured.append(key) or [1.0]) for key in keys]
    Journal("toy", settings, [0], budget_s).run(tasks, Console(quiet=True), str)
    return measured


def test_a_task_is_done_once_and_each_is_a_line(results_directory: Path) -> None:
    assert run("ab", {"x": 1}) == ["a", "b"]
    assert run("abc", {"x": 1}) == ["c"]
    (entry,) = all_entries()
    assert list(entry["tasks"]) == ["a", "b", "c"]
    (path,) = results_directory.iterdir()
    assert path.name.startswith("toy-")
    assert len([line for line in path.read_text().splitlines() if '"data":[1.0]' in line]) == 3


def one(value: float, share: float) -> dict[str, Any]:
    return {"others_share": share, "data": [{"part": "p", "name": "n", "unit": "ms", "samples": [value]}]}


def test_a_marked_round_is_left_out_of_medians() -> None:
    (found,) = measurements_of({"p/1": one(1.0, 0.0), "p/2": one(9.0, 0.06), "p/3": one(3.0, 0.05)})
    assert found.spread.median == 2.0
    assert found.has_quiet_round


BASE = {name: Best(ratio, "abc", "2026-11-22") for name, ratio in (("SAC, 1 thread", 2.0), ("TD3, 1 thread", 1.5))}


def test_a_ratio_may_be_10_percent_worse_and_must_be_measured() -> None:
    assert verdicts(BASE, {"SAC, 1 thread": 2.18, "TD3, 1 thread": 1.5}) == []
    assert verdicts(BASE, {"SAC, 1 thread": 2.22}) == [
        "SAC, 1 thread: an update takes 2.22 x its GEMM floor, 11% more than 2.00 x at abc (2026-11-22); allowed 10%",
        "TD3, 1 thread: not measured, was 1.50 x its GEMM floor at abc",
    ]


def test_sac_makes_16_products_and_td3_11_and_a_half() -> None:
    assert hidden_products("sac", policy_delay=1) == Products(8.0, 5.0, 3.0)
    assert hidden_products("td3", policy_delay=2) == Products(6.0, 3.0, 2.5)
    assert sum(hidden_products("sac", policy_delay=1)) == 16.0


@pytest.mark.parametrize(("cpu_version", "ratio"), [("25/17/1", 1.76), ("26/2/1", 0.90), ("6/85/7", 2.02)])
def test_an_update_is_judged_by_the_committed_results(cpu_version: str, ratio: float) -> None:
    own = [entry for entry in all_entries() if entry["hardware"].get("cpu_version") == cpu_version]
    assert best_results(own, machine_kind(own[0]))["SAC, 1 thread"].ratio <= ratio


SAC = Settings.of("sac")


def test_our_overrides_are_the_settings() -> None:
    for wanted in WORKLOADS.values():
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
    times = [(500, 0.0), (1000, 1.0), (1001, 1.0 + SETTLE_S), (1101, 2.0 + SETTLE_S), (1301, 4.0 + SETTLE_S)]
    ticks = [Tick(steps, clock_s, 0, 0.0) for steps, clock_s in times]
    assert steady_ticks(ticks, learning_starts=1000) == ticks[2:]
    assert steady_ticks(ticks, learning_starts=1000, settled_s=1.5 + SETTLE_S) == ticks[3:]


def test_ratios_are_of_one_round() -> None:
    rates = {("ours", 1): 100.0, ("sb3-2", 1): 80.0, ("ours", 2): 90.0}
    repeats = [Repeat(contender, number, rate, 0.0) for (contender, number), rate in rates.items()]
    assert ratios(repeats) == {"offpolicy / Stable-Baselines3, 2 threads": {1: 1.25}}


PENDULUM = Study("small", ("algo=sac", "env=pendulum"), 10_000, 3, -180.0, (Published(10_000, -162.0, 3.0, "zoo"),))


@pytest.mark.slow
def test_every_study_is_a_configuration_that_exists() -> None:
    for study in STUDIES:
        config = study.resolved("seed=3")
        assert (config.seed, config.total_timesteps) == (3, study.env_steps)
        assert (config.threads.learner, config.threads.collector) == (1, 1)
        assert agree(study.configuration(), study.configuration())
        assert len(BY_KEY) == len(STUDIES)


def test_a_study_is_shown_with_spread_bar_and_the_policies_beside_it(results_directory: Path) -> None:
    nothing = {"Pendulum-v1": {"random": {"mean": -1_229.0}, "constant": {"mean": -1_180.4}}}
    for seed, mean in ((1, -150.0), (2, -160.0), (3, -170.0)):
        save_run(PENDULUM, seed, {"status": "finished", "wall_s": 60.0, "calls": [], "final": {"mean": mean}})
    (results_directory / "learning/nothing-learnt.json").write_text(json.dumps(nothing))
    assert list(runs_of(PENDULUM)) == [1, 2, 3]
    text = summary(PENDULUM, None)
    assert text.startswith("small: 3 of 3 seeds, mean -160.0, std 10.0, IQM -160.0 [-170.0, -150.0], bar -180")
    assert text.endswith("-162 at 10,000 (zoo), random -1,229, constant -1,180")
    assert runs_of(PENDULUM._replace(overrides=("algo=td3", "env=pendulum"))) == {}  # of another configuration
