"""The numbers of the tasks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from offpolicy.envs.hand.task import SHAPES, TASKS, Range


@pytest.mark.parametrize("name", TASKS)
def test_held_out_ranges_contain_those_of_training(name: str) -> None:
    task = TASKS[name]
    for field in dataclasses.fields(task.train):
        own, wider = getattr(task.train, field.name), getattr(task.held_out, field.name)
        assert wider.low <= own.low <= own.high <= wider.high
        assert wider == own or (wider.low < own.low and own.high < wider.high)


def test_the_task_of_hora_has_what_the_simple_one_lacks() -> None:
    hora, simple = TASKS["rotation"], TASKS["spin"]
    assert hora.train.tilt.low > 0.0 == simple.train.tilt.high
    assert hora.shapes == SHAPES
    assert simple.shapes == ("cube",)
    assert min(hora.joint_noise, hora.push, hora.push_probability, hora.rewards.pose) > 0.0
    assert max(simple.joint_noise, simple.push, simple.rewards.pose) == 0.0
    assert hora.train.mass.high / hora.train.mass.low == pytest.approx(25.0)


def test_a_range_without_width_is_its_middle() -> None:
    assert Range(2.0, 2.0).centred(2.0) == 0.0
    assert Range(2.0, 2.0).draw(np.random.default_rng(0)) == 2.0
    assert [Range(1.0, 3.0).centred(value) for value in (1.0, 2.0, 3.0)] == [-1.0, 0.0, 1.0]
