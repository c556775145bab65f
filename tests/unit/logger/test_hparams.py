"""The options in TensorBoard's table of hyper-parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offpolicy.config.overrides import load_config
from offpolicy.logger.hparams import final_values, used_options
from offpolicy.logger.record import RunHeader


@pytest.mark.parametrize(
    ("algo", "used", "unused"),
    [
        ("sac", "algo.alpha_lr", "algo.exploration_noise"),
        ("td3", "algo.exploration_noise", "algo.alpha_lr"),
        ("appo", "rollout.length", "replay.capacity"),
        ("appo", "algo.clip", "collect.band"),
    ],
)
def test_options_are_those_of_the_algorithm(header: RunHeader, algo: str, used: str, unused: str) -> None:
    options = used_options(load_config([f"algo={algo}"]).to_mapping(), replace(header, algo=algo))
    assert list(options)[:3] == ["algo.name", "env.id", "runner.name"]
    assert options["algo.name"] == algo
    assert used in options
    assert unused not in options
    assert not [key for key in options if key.startswith(("log.", "timing.", "run_dir"))]
    assert None not in options.values()


def test_options_of_another_trainer_are_all_listed(header: RunHeader) -> None:
    config = {"algo": {"temperature": 0.5}, "gamma": 0.9, "nothing": None}
    assert used_options(config, replace(header, algo="theirs")) == {"algo.temperature": 0.5, "gamma": 0.9}


def test_an_option_that_is_off_or_zero_is_listed(header: RunHeader) -> None:
    config = {"algo": {"anneal": False, "dropout": 0.0}, "seed": 0}
    assert used_options(config, replace(header, algo="theirs")) == {
        "seed": 0, "algo.anneal": False, "algo.dropout": 0.0
    }  # fmt: skip


def test_options_that_change_neither_learning_nor_speed_are_left_out(header: RunHeader) -> None:
    config = {
        "run_dir": "a",
        "resume": "b",
        "log": {"every_s": 1},
        "checkpoint": {"every": 2},
        "timing": {"enabled": 1},
    }
    config["env"] = {"measure": "height", "id": "X-v0"}
    assert used_options(config, replace(header, algo="theirs")) == {"env.id": "X-v0"}


def test_final_values_are_those_of_the_whole_run() -> None:
    learner = {"wall_s": 110.0, "phases_s": {"train": 80.0, "warmup": 10.0}}
    summary = {
        "wall_s": 120.0,
        "eval": {"mean_reward": None},
        "rates": {"steps_per_sec": 95.0},
        "timing": {"learner": learner},
    }
    expected = {"final/elapsed_s": 120.0, "final/steps_per_sec": 95.0, "final/learner_train_pct": 80.0}
    assert final_values(summary) == expected
    assert "final/learner_train_pct" not in final_values(summary | {"timing": {"learner": None}})
