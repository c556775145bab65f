"""What a collector is told of a schedule: it goes by its own steps, and knows how many others there are."""

from __future__ import annotations

from offpolicy.config.schedules import Ramp
from offpolicy.config.sections import AlgoConfig
from runners.collector import noise_schedule


def test_a_collector_dates_its_noise_by_the_steps_of_all() -> None:
    algo = AlgoConfig(name="td3", learning_starts=60, exploration_noise=Ramp(start=0.5, end=0.0, over=100))
    noise = noise_schedule(algo, num_collectors=3)
    assert noise is not None
    assert [noise(own_steps) for own_steps in (0, 20, 30, 60)] == [0.5, 0.5, 0.35, 0.0]


def test_a_noise_that_is_a_number_is_looked_up_by_nobody() -> None:
    assert noise_schedule(AlgoConfig(name="td3"), num_collectors=1) is None
