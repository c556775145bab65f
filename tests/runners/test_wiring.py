"""What is decided before a process starts: memory, threads, what may change at a resume."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from offpolicy.config import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.nets.policy import flat_size, make_policy
from offpolicy.types import SpaceSpec
from runners import train, wiring

SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6)


def config(**tree: object) -> RunConfig:
    return RunConfig.from_mapping(tree)


def test_the_replay_is_never_larger_than_the_run_can_fill() -> None:
    small = config(total_timesteps=5000)
    assert wiring.replay_nbytes(small, SPEC) == 64 + 5001 * 4 * (2 * 17 + 6 + 4)


def test_a_replay_that_does_not_fit_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "available_memory", lambda: 2 * 2**30)
    with pytest.raises(ConfigError, match=r"3\.00 GiB.*2\.00 GiB"):
        wiring.check_memory(3 * 2**30)
    wiring.check_memory(2**30)


def test_the_memory_at_hand_is_a_sensible_number() -> None:
    assert 2**26 < wiring.available_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("name", ["sac", "td3"])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_weights_always_fit_into_their_mailbox(name: str, normalize: bool) -> None:
    cfg = config(algo={"name": name, "hidden_dims": [64, 48, 32], "normalize_obs": normalize})
    torch.manual_seed(0)
    assert 4 * flat_size(make_policy(cfg.algo, SPEC)) <= wiring.max_policy_nbytes(cfg, SPEC)


def test_threads_can_be_set_and_leave_room_for_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert wiring.thread_budget(config(collect={"mode": "overlap"})) == {"collector": 1, "learner": 7}
    assert wiring.thread_budget(config()) == {"collector": 1, "learner": 8}  # they take turns
    assert wiring.thread_budget(config(threads={"learner": 3, "collector": 2})) == {"collector": 2, "learner": 3}


def test_learning_never_starts_before_the_first_n_step_row_exists() -> None:
    cfg = config(algo={"learning_starts": 2, "n_step": 5}, env={"num_envs": 4})
    assert wiring.first_learning_step(cfg) == 20


def test_an_assignment_survives_its_trip_to_the_child() -> None:
    job = wiring.Assignment(config(), SPEC, "/somewhere", 400)

    class Context:
        payload = job.to_json()

    assert wiring.Assignment.of(Context()) == job  # type: ignore[arg-type]


def test_what_would_make_another_experiment_cannot_change_at_a_resume(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        train.resume(tmp_path, {"algo": {"gamma": 0.9}, "seed": 2, "log": {"every_s": 1.0}, "total_timesteps": 10})
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["algo.gamma", "seed"]
