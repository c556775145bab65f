from __future__ import annotations

import torch

from offpolicy.algos.metrics import MetricSums

GROUPS = {"critic": ("critic_loss", "q_mean"), "actor": ("actor_loss",)}


def metric_sums() -> MetricSums:
    return MetricSums(GROUPS, torch.device("cpu"))


def test_totals_are_sums_and_counts_per_name() -> None:
    metrics = metric_sums()
    metrics.add("critic", (torch.tensor(1.0), torch.tensor(10.0)))
    metrics.add("critic", (torch.tensor(2.0), torch.tensor(20.0)))
    metrics.add("actor", (torch.tensor(-5.0),))
    totals = metrics.totals()
    assert totals.names == ("critic_loss", "q_mean", "actor_loss")
    assert totals.sums.tolist() == [3.0, 30.0, -5.0]
    assert totals.counts.tolist() == [2.0, 2.0, 1.0]


def test_totals_do_not_change_afterwards() -> None:
    metrics = metric_sums()
    totals = metrics.totals()
    metrics.add("actor", (torch.tensor(1.0),))
    assert totals.sums.tolist() == [0.0, 0.0, 0.0]
    assert totals.counts.tolist() == [0.0, 0.0, 0.0]


def test_a_small_value_is_not_lost_beside_a_large_sum() -> None:
    metrics = metric_sums()
    metrics.add("actor", (torch.tensor(2.0**30),))
    metrics.add("actor", (torch.tensor(0.25),))
    assert float(metrics.totals().sums[2]) == 2.0**30 + 0.25
