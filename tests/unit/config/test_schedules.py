"""Ramps over env steps: exact ends, no jump anywhere, nothing to save; and how a configuration writes one."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from offpolicy.config.overrides import load_config
from offpolicy.config.schedules import SHAPES, Ramp, ramp
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError

RAMPS = [
    Ramp(start=start, end=end, over=over, begin=begin, shape=shape)
    for (start, end), over, begin, shape in itertools.product(
        ((1.0, 0.1), (3e-4, 0.0), (0.0, 0.3), (-2.0, 5.0), (0.1, 0.3)), (1, 7, 950), (0, 50, None), SHAPES
    )
]
WARMUP = 50


def values(given: Ramp, stop: int = 1100) -> list[float]:
    return [given.at(env_steps, WARMUP) for env_steps in range(stop)]


def largest_jump(found: list[float]) -> float:
    return max(abs(after - before) for before, after in itertools.pairwise(found))


def test_both_ends_are_exact_and_the_value_stays_before_and_after() -> None:
    for given in RAMPS:
        begin = WARMUP if given.begin is None else given.begin
        found = values(given)
        assert set(found[: begin + 1]) == {given.start}
        assert set(found[begin + given.over :]) == {given.end}


def test_no_step_is_larger_than_the_slope() -> None:
    for given in RAMPS:
        slope, steepest = abs(given.start - given.end) / given.over, 1.0 if given.shape == "linear" else math.pi / 2
        assert largest_jump(values(given)) <= steepest * slope * (1 + 1e-9) or given.over == 1


def test_half_a_cosine_is_slow_at_both_ends_and_halfway_in_the_middle() -> None:
    found = [ramp(1.0, 0.0, fraction, "cosine") for fraction in (0.1, 0.5, 0.9)]
    assert found == pytest.approx([1 - 0.02447, 0.5, 0.02447], abs=1e-5)


def test_a_ramp_begins_at_the_end_of_warmup_by_default() -> None:
    words = [f"algo.{key}" for key in ("actor_lr.start=1e-3", "actor_lr.end=0", "actor_lr.over=100")]
    algo = load_config([*words, "algo.learning_starts=70"]).algo
    assert [algo.value(algo.actor_lr, n) for n in (69, 70, 120, 170)] == [1e-3, 1e-3, 5e-4, 0.0]
    assert algo.ramps["actor_lr"].begin == 70
    from_0 = load_config([*words, "algo.learning_starts=70", "algo.actor_lr.begin=0"]).algo
    assert from_0.value(from_0.actor_lr, 50) == 5e-4
    later = load_config([*words, "algo.learning_starts=70", "algo.actor_lr.begin=100"]).algo
    assert later.value(later.actor_lr, 150) == 5e-4


def problems(**algo: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_mapping({"algo": algo, "total_timesteps": 20_000})
    return list(caught.value.problems)


RAMP = {"start": 1e-3, "end": 0, "over": 100}


def test_what_is_no_ramp_is_refused_with_what_is_allowed() -> None:
    over, ends = "allowed a whole number in [1, inf)", "allowed a number in (0.0, inf) at one of them at least"
    shape = "allowed one of linear, cosine; did you mean cosine?"
    for change, problem in (
        ({"over": 0}, f".over: got 0, {over}"),
        ({"over": -5}, f".over: got -5, {over}"),
        ({"shape": "cosin"}, f".shape: got 'cosin', {shape}"),
        ({"begin": -1}, ".begin: got -1, allowed a whole number in [0, inf) or null"),
        ({"end": -1e-4}, ".end: got -0.0001, allowed a number in [0.0, inf)"),
        ({"start": 0}, f": got 0 at both ends, {ends}"),
        ({"start": "fast"}, ".start: got 'fast', allowed a number"),
        ({"strt": 3}, ".strt: unknown key; did you mean algo.actor_lr.start?"),
    ):
        assert problems(actor_lr=RAMP | change) == [f"algo.actor_lr{problem}"]
    allowed = "allowed a number in (0.0, inf) or a mapping of start, end, over, begin, shape"
    for value in ("cosine", None, True, [1, 2]):
        assert problems(critic_lr=value) == [f"algo.critic_lr: got {value!r}, {allowed}"]
    assert problems(gamma=RAMP)[0].endswith("}, allowed a number in [0.0, 1.0]")
    with pytest.raises(ConfigError, match=r"algo\.lr: got a schedule, allowed a number with algo\.lr_schedule=linear"):
        load_config(["algo=appo", "algo.lr={start:1e-3,end:0,over:100}", "algo.lr_schedule=linear"])
