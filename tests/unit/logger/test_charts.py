"""The keys that TensorBoard gets of a record, and the charts that show them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpolicy.logger.charts import ChartSelection
from offpolicy.logger.metrics import CHARTS
from offpolicy.logger.record import Record

GOLDEN: Record = json.loads(Path(__file__).with_name("golden_record.json").read_text())
MOST = 80  # charts of a plain run


def selected(record: Record, *, is_full: bool = False, num_ranks: int = 1) -> set[str]:
    return set(ChartSelection(is_full=is_full, num_ranks=num_ranks).select(record))


def test_a_plain_run_has_few_charts_and_no_prefix_before_eval() -> None:
    keys = selected(GOLDEN)
    assert 40 < len(keys) <= MOST
    prefixes = sorted({key.split("/")[0] for key in keys})
    assert prefixes == ["eval", "perf", "rollout", "share", "spread", "timing", "train"]


def test_every_phase_of_a_record_at_once_stays_below_the_limit() -> None:
    assert len(selected(dict.fromkeys((key for key in GOLDEN if "prefetch" not in key), 1.0))) <= MOST


def test_full_writes_every_number_but_the_axis() -> None:
    numbers = {key for key, value in GOLDEN.items() if not isinstance(value, str)}
    assert selected(GOLDEN, is_full=True) == numbers - {"env_steps", "iteration", "wall_s"}


@pytest.mark.parametrize(("num_ranks", "has_ranks"), [(1, False), (2, True)])
def test_keys_of_ranks_need_several_ranks(num_ranks: int, has_ranks: bool) -> None:
    keys = selected(dict.fromkeys(GOLDEN, 1.0), num_ranks=num_ranks)
    for key in ("rank/rank_barrier_max_ms", "timing/learner_rank_barrier_ms", "share/learner_param_sync_pct"):
        assert (key in keys) is has_ranks


def test_a_phase_is_written_from_its_first_time_on() -> None:
    selection, key = ChartSelection(is_full=False, num_ranks=1), "timing/learner_h2d_ms"
    assert [selection.select({key: value}) for value in (0.0, 2.0, 0.0)] == [{}, {key: 2.0}, {key: 0.0}]


def test_a_negative_residual_is_no_phase_without_time() -> None:
    key = "timing/learner_h2d_ms"
    assert selected({key: -0.5}) == {key}


def test_other_keys_are_written_at_zero_too() -> None:
    assert selected({"rollout/success_rate": 0.0, "prefetch/pack_ms": 0.0}) == {"rollout/success_rate"}


def test_keys_that_were_asked_for_are_always_among_them() -> None:
    assert selected({"rank/0/train_ms": 1.0, "reward/mean": 2.0}) == {"rank/0/train_ms", "reward/mean"}


def test_charts_without_a_value_are_left_out() -> None:
    selection = ChartSelection(is_full=False, num_ranks=1)
    assert selection.charts() == {}
    selection.select({"timing/learner_train_ms": 1.0, "timing/learner_h2d_ms": 0.0})
    assert selection.charts() == {"Learner phases, ms per iteration": {"Train": ["timing/learner_train_ms"]}}


def test_learning_and_rates_come_before_phases_and_shares() -> None:
    assert list(CHARTS)[:5] == [
        "Overview",
        "Learning",
        "Rates",
        "Learner phases, ms per iteration",
        "Collector phases, ms per vector step",
    ]
