from __future__ import annotations

import json
from dataclasses import asdict, replace

from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(
    obs_dim=10, action_dim=2, action_low=(-1.0, -2.0), action_high=(1.0, 2.0),
    obs_keys=("pose", "clock", "image", "none", "goal"), obs_shapes=((2,), (), (2, 3), (0,), (1,)),
    max_episode_steps=50,
)  # fmt: skip
BOX = SpaceSpec(obs_dim=3, action_dim=1, action_low=(0.0,), action_high=(3.0,), num_actions=4)


def test_columns_follow_the_order_of_the_keys_and_the_sizes_of_the_shapes() -> None:
    vector = list(range(10))
    assert {key: vector[SPEC.columns(key)] for key in SPEC.obs_keys} == {
        "pose": [0, 1],
        "clock": [2],  # a scalar is one number
        "image": [3, 4, 5, 6, 7, 8],
        "none": [],
        "goal": [9],
    }


def names(differences: list[str]) -> list[str]:
    return [difference.split()[0] for difference in differences]


def test_fields_that_differ_are_named_but_for_shapes_that_were_not_recorded() -> None:
    square, row = replace(BOX, action_shape=(2, 3)), replace(BOX, action_shape=(6,), box_shape=(1, 3))
    assert names(square.differences(row)) == ["action_shape"]
    assert names(row.differences(square)) == ["box_shape", "action_shape"]
    assert names(BOX.differences(row)) == []
    assert names(BOX.differences(replace(BOX, obs_dim=99, obs_dtype="uint8"))) == ["obs_dim"]
    assert names(replace(BOX, action_shape=()).differences(row)) == ["action_shape"]  # known: a scalar


def test_a_spec_survives_a_trip_through_json() -> None:
    for spec in (SPEC, BOX):
        returned = SpaceSpec.from_json(json.loads(json.dumps(asdict(spec))))
        assert returned == spec
        assert hash(returned) == hash(spec)  # tuples all the way down, no list is left
