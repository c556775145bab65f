"""The settings that `offpolicy tune` may change, and the verdict on two trials."""

from __future__ import annotations

import pytest

from offpolicy.analysis.tuning import KEYS, Machine, Measured, held_keys, moves, start_values
from offpolicy.config.overrides import load_config
from offpolicy.config.schema import all_keys

FOUR_CORES = Machine(num_cores=4, learns_on_gpu=False)


def changes(*words: str, machine: Machine = FOUR_CORES, typed: tuple[str, ...] = (), threads: int = 4) -> list[str]:
    cfg = load_config(words)
    return [move.text for move in moves(cfg, held_keys(cfg, typed, ()), machine, threads)]


def test_every_key_exists_and_none_changes_what_an_update_learns() -> None:
    assert KEYS.keys() <= set(all_keys())
    assert [key for key in KEYS if key.split(".")[0] in ("algo", "seed", "rollout", "device", "runner")] == []


def test_the_changes_of_the_default_run() -> None:
    assert changes() == [
        "collect.mode=overlap",
        "env.num_envs=2",
        "env.num_envs=2 env.vectorization=async",
        "collect.num_collectors=2",
        "replay.source=prefetch",
        "threads.collector=2",
    ]


def test_keys_that_were_typed_or_are_to_be_kept_are_not_changed() -> None:
    cfg = load_config(["env.num_envs=3"])
    held = held_keys(cfg, ["env.num_envs"], ["collect"])
    assert held["env.num_envs"] == "given on the command line"
    assert held["collect.mode"] == held["collect.num_collectors"] == "--keep"
    touched = {key for move in moves(cfg, held, FOUR_CORES, 4) for key in move.values}
    assert touched == {"env.vectorization", "replay.source", "threads.collector"}


def test_rollouts_keep_the_size_of_their_batch() -> None:
    every = {change.split("=")[0] for change in changes("algo=appo", "collect.mode=alternate")}
    assert every == {"collect.mode", "env.vectorization", "threads.collector"}
    assert "free" in held_keys(load_config(["algo=appo"]), [], [])["collect.mode"]


def test_ranks_try_threads_within_their_cores() -> None:
    words = ("runner=multi_gpu", "runner.world_size=2", "device=cpu", "algo.batch_size=256")
    assert "threads.learner=1" in changes(*words, threads=2)
    assert "threads.learner=4" not in changes(*words, threads=2)
    assert "threads.learner=2" in changes(*words, threads=1)
    assert not any(change.startswith("threads.learner") for change in changes())  # each run tries them itself


def test_a_gpu_offers_the_sources_that_use_it() -> None:
    sources = [
        change for change in changes(machine=Machine(4, learns_on_gpu=True)) if change.startswith("replay.source")
    ]
    assert sources == ["replay.source=direct", "replay.source=prefetch"]


def test_the_start_has_the_values_that_stand_for_auto_and_null() -> None:
    start = start_values(load_config(["runner=double_buffer"]), FOUR_CORES, 3)
    assert (start["collect.mode"], start["replay.source"]) == ("overlap", "prefetch")
    assert (start["threads.learner"], start["threads.collector"]) == (3, 1)


@pytest.mark.parametrize("rate", [51.0, 200.0])
def test_a_trial_that_still_tried_settings_is_not_judged_beside_one_that_did_not(rate: float) -> None:
    unsettled, settled = Measured((rate,) * 5, is_settled=False), Measured((100.0,) * 5)
    assert unsettled.verdict(settled) == settled.verdict(unsettled) == "not judged"
    assert unsettled.verdict(Measured((10.0,) * 5, is_settled=False)) == "faster"


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ((120.0, 121.0, 122.0), "faster"),
        ((80.0, 81.0, 82.0), "slower"),
        ((100.0, 120.0, 140.0), "noise"),  # its middle half begins below the end of the other's
        ((102.4, 102.5, 102.6), "noise"),  # beyond the spread, and too little to be worth it
    ],
)
def test_a_verdict_needs_more_than_the_spread_of_both(rates: tuple[float, ...], verdict: str) -> None:
    other = Measured((98.0, 100.0, 102.0, *[100.0] * 20)) if rates[0] == 102.4 else Measured((90.0, 100.0, 130.0))
    assert Measured(rates).verdict(other) == verdict


@pytest.mark.parametrize(
    ("words", "factor"),
    [
        ((), 0.5 * (0.1 + 0.9 / 4)),
        (("collect.mode=overlap",), 0.5),
        (("collect.mode=auto",), 0.5),
        (("collect.mode=overlap", "threads.collector=2"), 0.5 * (0.1 + 0.9 / 2)),
        (("collect.num_collectors=2",), 0.5 * (0.1 + 0.9 / 2)),
    ],
)
def test_a_batch_is_predicted_with_the_threads_that_it_will_have(words: tuple[str, ...], factor: float) -> None:
    cfg = load_config(["env=halfcheetah", "env.num_envs=8", "env.vectorization=sync", *words])
    (found,) = [move for move in moves(cfg, {}, FOUR_CORES, 4) if move.text == "env.vectorization=mujoco"]
    assert found.factors == {"env_step": pytest.approx(factor)}


@pytest.mark.parametrize(
    ("words", "factor"),
    [
        (("env.vectorization=sync",), 1.0),  # one after another
        (("env.vectorization=async",), 0.5),  # side by side, as where they wait for something
        (
            ("env=halfcheetah", "env.vectorization=mujoco"),
            (0.1 + 0.9 / 4) / (0.1 + 0.9 / 2),
        ),  # on four threads, not two
    ],
)
def test_what_twice_the_environments_save_depends_on_how_they_are_stepped(
    words: tuple[str, ...], factor: float
) -> None:
    cfg = load_config(["env.num_envs=2", *words])
    (found,) = [move for move in moves(cfg, {}, FOUR_CORES, 4) if move.text == "env.num_envs=4"]
    assert found.factors["env_step"] == pytest.approx(factor)
    assert found.factors["action_select"] == 0.5


def test_environments_that_may_wait_gain_their_number_on_any_number_of_cores() -> None:
    cfg = load_config(["env.num_envs=4", "env.vectorization=sync"])
    found = {move.text: move.factors for move in moves(cfg, {}, Machine(1, learns_on_gpu=False), 1)}
    assert found["env.vectorization=async"] == {"env_step": 0.25}
    assert found["env.num_envs=8 env.vectorization=async"]["env_step"] == 0.125


def test_one_call_for_all_environments_may_gain_on_one_core() -> None:
    cfg = load_config(["env.num_envs=4", "env.vectorization=sync"])
    (found,) = [
        one for one in moves(cfg, {}, Machine(1, learns_on_gpu=False), 1) if one.text == "env.vectorization=mujoco"
    ]
    assert found.factors == {"env_step": 0.5}


def test_the_source_stays_where_an_option_was_given_that_another_does_not_read() -> None:
    cfg = load_config(["replay.slots=3"])
    assert "replay.source" in held_keys(cfg, ["replay.slots"], ())
    assert "replay.source" not in held_keys(cfg, [], ())
