"""Transitions become rows, complete and finite; reset rows and bad rows do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offpolicy.collect.replay_writer import BadRowError, ReplayWriter
from offpolicy.replay.demonstrations import Transitions, demonstration_rows
from offpolicy.replay.replay_ring import ReplayRing
from offpolicy.replay.row_layout import RowLayout
from offpolicy.types import PolicyOutput, StepOutcome
from tests.replay_scene import transitions_of

LAYOUT = RowLayout(obs_dim=1, action_dim=1)
GAMMA = 0.5


def make(n_step: int = 1, num_envs: int = 1, layout: RowLayout = LAYOUT) -> tuple[ReplayWriter, ReplayRing]:
    memory = memoryview(bytearray(ReplayRing.nbytes_for(64, layout, num_envs, n_step)))
    ring = ReplayRing(memory, layout, 64, num_envs=num_envs, n_step=n_step)
    return ReplayWriter(ring, gamma=GAMMA, n_step=n_step), ring


Obs = list[float] | list[list[float]]  # of environments, with one number or several


def outcome(next_obs: Obs, **fields: Any) -> StepOutcome:
    count = len(next_obs)
    values: dict[str, Any] = {
        "reward": [1.0] * count, "terminated": [False] * count, "truncated": [False] * count,
        "is_valid": [True] * count,
    } | fields  # fmt: skip
    return StepOutcome(
        next_obs=np.array(next_obs, dtype=np.float32).reshape(count, -1),
        reward=np.array(values["reward"], dtype=np.float64), terminated=np.array(values["terminated"]),
        truncated=np.array(values["truncated"]), is_valid=np.array(values["is_valid"]),
        success=np.full(count, np.nan, dtype=np.float32), measure=np.full(count, np.nan, dtype=np.float32),
    )  # fmt: skip


def feed(writer: ReplayWriter, obs: Obs, step: StepOutcome) -> int:
    action = np.full((len(obs), 1), 0.1, dtype=np.float32)
    return writer.write(np.array(obs, dtype=np.float32).reshape(len(obs), -1), PolicyOutput(action, None, 0), step)


def stored(ring: ReplayRing) -> list[tuple[float, ...]]:
    """(obs, next_obs, reward, terminated, truncated, discount) of every row."""
    slots = np.concatenate(ring.spans(0, ring.end))
    rows = transitions_of(slots, ring.committed, LAYOUT, ring.num_envs)
    return [tuple(np.round(row[[0, 1, 3, 4, 5, 6]].astype(float), 6)) for row in rows]


@pytest.mark.promise("bootstrap")
def test_a_row_holds_the_true_successor_the_raw_reward_and_both_flags() -> None:
    writer, ring = make()
    assert feed(writer, [1.0], outcome([2.0], reward=[-3.5], terminated=[True], truncated=[True])) == 1
    assert stored(ring) == [(1.0, 2.0, -3.5, 1.0, 1.0, 0.5)]


@pytest.mark.promise("reset-rows")
def test_reset_rows_are_neither_stored_nor_counted() -> None:
    writer, ring = make(num_envs=2)
    assert feed(writer, [1.0, 10.0], outcome([2.0, 11.0], is_valid=[False, True])) == 1
    assert stored(ring) == [(10.0, 11.0, 1.0, 0.0, 0.0, 0.5)]


def test_an_episode_that_begins_with_nan_is_refused_though_its_row_is_no_transition() -> None:
    writer, ring = make(num_envs=2)
    with pytest.raises(BadRowError, match="NaN or Inf in next_obs of environment 0") as caught:
        feed(writer, [1.0, 10.0], outcome([float("nan"), 11.0], is_valid=[False, True]))
    assert (caught.value.envs, caught.value.num_stored) == ((0,), 1)
    assert stored(ring) == [(10.0, 11.0, 1.0, 0.0, 0.0, 0.5)]
    writer, _ = make()
    reset = outcome([2.0], is_valid=[False], reward=[float("nan")])
    assert feed(writer, [1.0], reset) == 0  # what else such a row holds is nothing


@pytest.mark.promise("nan-never-trained")
def test_a_bad_row_is_refused_and_the_sound_rows_of_the_step_are_kept() -> None:
    writer, ring = make(num_envs=2)
    with pytest.raises(BadRowError, match="NaN or Inf in reward of environment 1") as caught:
        feed(writer, [1.0, 10.0], outcome([2.0, 11.0], reward=[1.0, float("nan")]))
    assert stored(ring) == [(1.0, 2.0, 1.0, 0.0, 0.0, 0.5)]
    assert (caught.value.envs, caught.value.num_stored) == ((1,), 1)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_a_reward_beyond_float32_is_refused_and_never_stored() -> None:
    writer, ring = make(num_envs=2)
    with pytest.raises(BadRowError, match="NaN or Inf in reward of environment 1"):
        feed(writer, [1.0, 10.0], outcome([2.0, 11.0], reward=[1.0, 1e39]))
    assert stored(ring) == [(1.0, 2.0, 1.0, 0.0, 0.0, 0.5)]


@pytest.mark.parametrize("abandoned", [[1], []])
def test_no_row_leads_from_one_episode_to_another_and_those_of_others_stay(abandoned: list[int]) -> None:
    """Whether the episode was abandoned, or the next observation shows that another one has begun."""
    writer, ring = make(n_step=2, num_envs=2)
    feed(writer, [0.0, 10.0], outcome([1.0, 11.0]))
    writer.abandon(abandoned)
    feed(writer, [1.0, 50.0], outcome([2.0, 51.0]))
    feed(writer, [2.0, 51.0], outcome([3.0, 52.0]))
    assert [row[:2] for row in stored(ring)] == [(0.0, 2.0), (1.0, 3.0), (50.0, 52.0)]


@pytest.mark.promise("n-step")
def test_three_steps_are_summed_with_the_discount_of_the_steps_used() -> None:
    writer, ring = make(n_step=3)
    for t in range(4):
        assert feed(writer, [float(t)], outcome([t + 1.0], reward=[float(10**t)])) == 1
    # gamma 0.5: 1 + 5 + 25, then 10 + 50 + 250
    assert stored(ring) == [(0.0, 3.0, 31.0, 0.0, 0.0, 0.125), (1.0, 4.0, 310.0, 0.0, 0.0, 0.125)]


@pytest.mark.promise("n-step")
@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_windows_end_with_their_episode_and_never_reach_into_the_next(flag: str) -> None:
    writer, ring = make(n_step=3)
    feed(writer, [0.0], outcome([1.0], reward=[1.0]))
    feed(writer, [1.0], outcome([2.0], reward=[2.0], **{flag: [True]}))
    feed(writer, [2.0], outcome([50.0], is_valid=[False]))
    feed(writer, [50.0], outcome([51.0], reward=[100.0]))
    flags = (1.0, 0.0) if flag == "terminated" else (0.0, 1.0)
    assert stored(ring) == [(0.0, 2.0, 2.0, *flags, 0.25), (1.0, 2.0, 2.0, *flags, 0.5)]


def test_open_windows_survive_a_snapshot() -> None:
    writer, ring = make(n_step=3)
    copy, copied_ring = make(n_step=3)
    for t in range(2):
        feed(writer, [float(t)], outcome([t + 1.0], reward=[float(t)]))
    copy.reopen_windows(*writer.open_windows())
    copy.begin()
    for target in (writer, copy):
        feed(target, [2.0], outcome([3.0], reward=[2.0]))
    assert stored(ring) == stored(copied_ring) != []


def transitions(*lengths: int, terminated: tuple[int, ...] = ()) -> Transitions:
    """Episodes whose observations count from 10, 20, ..., with a reward of 1, 2, 3, ... over all rows."""
    obs = np.concatenate([10.0 * (n + 1) + np.arange(length) for n, length in enumerate(lengths)])
    first = np.cumsum((0, *lengths))[:-1]
    count, last = len(obs), np.cumsum(lengths) - 1
    ends = np.isin(np.arange(count), last[list(terminated)] if terminated else [])
    return Transitions(
        obs=obs[:, None].astype(np.float32), action=np.zeros((count, 1), np.float32), reward=1.0 + np.arange(count),
        next_obs=(obs[:, None] + 1).astype(np.float32), terminated=ends,
        truncated=np.isin(np.arange(count), last) & ~ends, first=first,
    )  # fmt: skip


def rows(found: Transitions, n_step: int) -> dict[float, list[float]]:
    """By first observation: the last, the reward, terminated and the discount."""
    made = demonstration_rows(found, LAYOUT, gamma=GAMMA, n_step=n_step)
    columns = [LAYOUT.next_obs.start, LAYOUT.reward, LAYOUT.terminated, LAYOUT.discount]
    return {float(row[0]): row[columns].astype(float).tolist() for row in made}


def test_with_more_steps_a_row_sums_until_its_episode_ends_and_never_beyond() -> None:
    found = rows(transitions(4, 1, 2, terminated=(0,)), 3)
    assert found == {
        10.0: [13.0, 1 + 2 / 2 + 3 / 4, 0.0, 0.125], 11.0: [14.0, 2 + 3 / 2 + 4 / 4, 1.0, 0.125],
        12.0: [14.0, 3 + 4 / 2, 1.0, 0.25], 13.0: [14.0, 4.0, 1.0, 0.5], 20.0: [21.0, 5.0, 0.0, 0.5],
        30.0: [32.0, 6 + 7 / 2, 0.0, 0.25], 31.0: [32.0, 7.0, 0.0, 0.5],
    }  # fmt: skip


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("before", ["nothing", "another one", "the same, of autoreset"])
def test_an_observation_that_is_acted_on_is_looked_at_unless_a_sound_step_led_to_it(before: str, number: float) -> None:
    writer, ring = make()
    if before == "another one":
        feed(writer, [1.0], outcome([2.0]))
    elif before == "the same, of autoreset":
        with pytest.raises(BadRowError, match="NaN or Inf in next_obs of environment 0"):
            feed(writer, [1.0], outcome([number], is_valid=[False]))
    num_written = ring.num_written
    with pytest.raises(BadRowError, match="NaN or Inf in obs of environment 0"):
        feed(writer, [number], outcome([3.0]))
    assert ring.num_written == num_written
    assert feed(writer, [3.0], outcome([4.0])) == 1
