"""UTD in transitions, exactly, in every mode."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpolicy.config.schema import RunConfig
from offpolicy.replay.rate_limiter import (
    MAX_UPDATES_PER_ITERATION,
    LearningStart,
    RateLimiter,
    first_learning_step,
    make_rate_limiter,
)


def limiter(
    mode: str = "alternate", utd: float = 1.0, num_envs: int = 1, total: int = 1000, band: int = 10
) -> RateLimiter:
    return RateLimiter.of(mode, utd, num_envs, band=band, start=LearningStart(100, 0), total=total)


def run(limiter: RateLimiter, num_envs: int) -> tuple[int, int, list[int]]:
    """Alternate collector and learner to the end; returns env steps, updates and the updates of each iteration."""
    env_steps = updates = 0
    sizes: list[int] = []
    for _ in itertools.repeat(None, 100_000):
        while env_steps < limiter.granted(updates):
            env_steps += num_envs
        if limiter.is_spent(env_steps, updates):
            return env_steps, updates, sizes
        assert env_steps >= limiter.earliest(updates)
        num_updates = limiter.due(env_steps, updates)
        assert num_updates >= 1
        sizes.append(num_updates)
        updates += num_updates
    raise AssertionError("the run never ended")


@pytest.mark.promise("utd")
@pytest.mark.parametrize("mode", ["alternate", "overlap"])
@pytest.mark.parametrize("num_envs", [1, 3, 8])
@pytest.mark.parametrize("utd", [0.1, 0.25, 1.0, 1.5, 4.0, 20.0])
def test_updates_per_transition_are_exact_for_any_number_of_envs(mode: str, num_envs: int, utd: float) -> None:
    env_steps, updates, sizes = run(limiter(mode, utd, num_envs), num_envs)
    assert 1000 <= env_steps < 1000 + num_envs
    assert updates == int((env_steps - 100) * utd + 1e-9)
    assert max(sizes) <= MAX_UPDATES_PER_ITERATION


def test_nothing_is_due_before_learning_starts() -> None:
    assert limiter().due(100, 0) == 0
    assert limiter().earliest(0) == 101
    assert limiter().due(101, 0) == 1


def test_alternate_grants_exactly_what_the_next_update_needs_and_overlap_one_chunk_more() -> None:
    assert limiter("alternate").granted(7) == limiter("alternate").needed(7) == 108
    assert limiter("overlap").granted(7) == 109
    assert limiter("overlap", num_envs=8).granted(0) == 101 + 8
    assert limiter("overlap", utd=0.25).granted(0) == 104 + 4


@pytest.mark.promise("collect-modes")
def test_free_lets_either_side_run_ahead_by_the_band_and_no_further() -> None:
    free = limiter("free", band=10)
    assert free.granted(50) == free.needed(50) + 10
    assert free.earliest(50) == free.needed(50) - 10
    assert free.due(150, 59) == 1
    assert free.due(150, 60) == 0


def test_the_collector_is_never_granted_more_than_the_budget() -> None:
    assert limiter("free", total=120, band=1000).granted(0) == 120


def test_a_resumed_run_without_replay_owes_nothing_for_the_steps_before() -> None:
    resumed = RateLimiter.of("alternate", 1.0, 1, band=1, start=LearningStart(600, 450), total=1000)
    assert resumed.due(600, 450) == 0
    assert resumed.due(601, 450) == 1


def config(**tree: Any) -> RunConfig:
    return RunConfig.from_mapping({"device": "cpu", **tree})


def test_learning_starts_once_every_ring_of_every_host_can_have_a_row() -> None:
    cfg = config(algo={"n_step": 3, "learning_starts": 1}, env={"num_envs": 2}, collect={"num_collectors": 2})
    assert [first_learning_step(cfg, num_hosts) for num_hosts in (1, 2)] == [12, 24]


def test_the_environments_of_all_hosts_make_one_vector_step() -> None:
    cfg = config(algo={"utd": 1.0}, env={"num_envs": 4}, collect={"mode": "overlap"})
    made = make_rate_limiter(cfg, LearningStart(0, 0), num_hosts=2)
    assert (made.chunk, made.lead, made.max_updates) == (8, 8, 8)


@given(
    utd=st.fractions(min_value=Fraction(1, 10_000), max_value=64, max_denominator=10_000),
    env_steps=st.integers(0, 10_000),
    owed=st.integers(-2, 2),
    start_updates=st.integers(0, 100),
    credit=st.integers(0, 300),
)
def test_whole_numbers_give_what_fractions_give(
    utd: Fraction, env_steps: int, owed: int, start_updates: int, credit: int
) -> None:
    start = LearningStart(100, start_updates)
    free = RateLimiter.of("free", float(utd), 4, band=credit, start=start, total=20_000)
    allowed = (max(env_steps - 100, 0) + credit) * free.utd
    done = max(math.floor(allowed) - owed, 0)  # near what is allowed, where both bounds of `due` leave room
    assert free.needed(start_updates + done) == 100 + math.ceil((done + 1) / free.utd)
    assert free.due(env_steps, start_updates + done) == max(0, min(math.floor(allowed - done), free.max_updates))
