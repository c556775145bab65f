"""Every lost env step per second has a name, and the names add up."""

from __future__ import annotations

import pytest

from offpolicy.timing.waterfall import waterfall

S = 1_000_000_000


def test_a_run_that_does_what_it_could_loses_nothing() -> None:
    losses = waterfall(400.0, 100.0, "overlap", 100.0, {"train": S})
    assert losses == [("min(I, T)", 100.0), ("the rest", 100.0)]


def test_turns_and_pauses_take_their_shares() -> None:
    """Of 10 ms per env step: 4 collecting, 4 learning, 2 evaluating."""
    phases = {"collector_wait": 4 * S, "train": 4 * S, "evaluation": 2 * S}
    losses = waterfall(250.0, 250.0, "alternate", 100.0, phases)
    assert [cause for cause, _ in losses] == ["min(I, T)", "taking turns", "evaluation", "the rest"]
    assert [rate for _, rate in losses] == pytest.approx([250.0, 125.0, 100.0, 100.0])


def test_waits_of_the_slower_learner_add_up() -> None:
    phases = {"train": 5 * S, "rank_barrier": 2 * S, "replay_batch_wait": 1 * S, "collector_wait": 2 * S}
    losses = dict(waterfall(1000.0, 200.0, "overlap", 100.0, phases))
    assert losses["replay_batch_wait"] == pytest.approx(1 / (0.005 + 0.001))
    assert losses["rank_barrier"] == pytest.approx(1 / (0.005 + 0.001 + 0.002))
    assert losses["the rest"] == 100.0


def test_waits_of_the_faster_learner_are_hidden() -> None:
    phases = {"train": 5 * S, "rank_barrier": 2 * S, "collector_wait": 3 * S}
    assert "rank_barrier" not in dict(waterfall(100.0, 200.0, "overlap", 100.0, phases))


def test_the_sum_of_the_costs_is_the_time_per_env_step() -> None:
    phases = {"train": 50, "rank_barrier": 3, "checkpoint": 7, "evaluation": 11, "collector_wait": 29}
    rates = [rate for _, rate in waterfall(300.0, 120.0, "free", 55.0, phases)]
    costs = [1.0 / rates[0], *(1.0 / after - 1.0 / before for before, after in zip(rates, rates[1:], strict=False))]
    assert sum(costs) == pytest.approx(1.0 / 55.0, rel=1e-12)
    assert costs[1:4] == pytest.approx([0.03 / 55.0, 0.11 / 55.0, 0.07 / 55.0])


@pytest.mark.parametrize(("phases", "collector"), [({}, 100.0), ({"train": 0}, 100.0), ({"train": 9}, 0.0)])
def test_without_an_account_there_is_no_waterfall(phases: dict[str, int], collector: float) -> None:
    with pytest.raises(ValueError, match="a waterfall needs"):
        waterfall(collector, 100.0, "overlap", 50.0, phases)
