"""The sizes that are known without torch are those of the networks."""

from __future__ import annotations

import pytest
import torch

from offpolicy.config.schema import AlgoConfig
from offpolicy.nets.hora import AdaptationModule
from offpolicy.nets.hora_shapes import CHANNELS, MIN_FRAMES, is_long_enough, lengths
from offpolicy.types import SpaceSpec


def spec_of(num_frames: int) -> SpaceSpec:
    return SpaceSpec(
        obs_dim=3 + 4 + num_frames * 2,
        action_dim=1,
        action_low=(-1.0,),
        action_high=(1.0,),
        obs_keys=("obs", "privileged", "proprio_hist"),
        obs_shapes=((3,), (4,), (num_frames, 2)),
    )


def test_thirty_frames_become_three() -> None:
    assert lengths(30) == [30, 11, 7, 3]


@pytest.mark.parametrize("num_frames", range(MIN_FRAMES, 41))
def test_the_lengths_are_those_of_the_convolutions(num_frames: int) -> None:
    module = AdaptationModule(AlgoConfig(name="hora", stage="adapt"), spec_of(num_frames))
    frames, found = torch.zeros(1, CHANNELS, num_frames), [num_frames]
    for layer in module.over_time[::2]:
        frames = layer(frames)
        found.append(frames.shape[-1])
    assert found == lengths(num_frames)


def test_the_fewest_frames_are_accepted() -> None:
    module = AdaptationModule(AlgoConfig(name="hora", stage="adapt"), spec_of(MIN_FRAMES))
    assert module.infer(torch.zeros(1, 2 * MIN_FRAMES)).shape == (1, 8)


def test_a_frame_less_than_the_fewest_is_refused_by_the_convolutions() -> None:
    module = AdaptationModule(AlgoConfig(name="hora", stage="adapt"), spec_of(MIN_FRAMES))
    with pytest.raises(RuntimeError, match="[Kk]ernel size"):
        module.over_time(torch.zeros(1, CHANNELS, MIN_FRAMES - 1))


@pytest.mark.parametrize("num_frames", range(1, 41))
def test_long_enough_begins_at_the_fewest_frames(num_frames: int) -> None:
    assert is_long_enough(num_frames) == (num_frames >= MIN_FRAMES)
