"""The sizes that are known without torch are those of the networks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from offpolicy.config.schema import AlgoConfig, RunConfig
from offpolicy.nets.hora import AdaptationModule, PrivilegedEncoder
from offpolicy.nets.hora_shapes import (
    CHANNELS,
    MIN_FRAMES,
    adaptation_parameters,
    is_long_enough,
    lengths,
    mlp_parameters,
)
from offpolicy.nets.policy import flat_size, make_policy
from offpolicy.training.memory_sizes import max_policy_nbytes
from offpolicy.types import SpaceSpec


def spec_of(
    num_frames: int = 30, frame_dim: int = 2, privileged_dim: int = 4, obs_dim: int = 3, num_actions: int = 0
) -> SpaceSpec:
    return SpaceSpec(
        obs_dim=obs_dim + privileged_dim + num_frames * frame_dim,
        action_dim=1,
        action_low=(-1.0,),
        action_high=(1.0,),
        obs_keys=("obs", "privileged", "proprio_hist"),
        obs_shapes=((obs_dim,), (privileged_dim,), (num_frames, frame_dim)),
        num_actions=num_actions,
    )


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_thirty_frames_become_three() -> None:
    assert lengths(30) == [30, 11, 7, 3]


def test_perceptrons_have_weights_and_biases() -> None:
    assert mlp_parameters(3, 5, 2) == (3 * 5 + 5) + (5 * 2 + 2)


@given(frames=st.integers(MIN_FRAMES, 60), frame_dim=st.integers(1, 40), latent_dim=st.integers(1, 20))
def test_the_adaptation_module_has_as_many_parameters_as_foretold(frames: int, frame_dim: int, latent_dim: int) -> None:
    algo = AlgoConfig(name="hora", stage="adapt", latent_dim=latent_dim)
    module = AdaptationModule(algo, spec_of(frames, frame_dim))
    assert count(module) == adaptation_parameters(frames, frame_dim, latent_dim)


@given(
    privileged_dim=st.integers(1, 40),
    dims=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    latent_dim=st.integers(1, 20),
)
def test_the_encoder_has_as_many_parameters_as_foretold(privileged_dim: int, dims: list[int], latent_dim: int) -> None:
    algo = AlgoConfig(name="hora", latent_dim=latent_dim, encoder_dims=tuple(dims))
    encoder = PrivilegedEncoder(algo, spec_of(privileged_dim=privileged_dim))
    assert count(encoder) == mlp_parameters(privileged_dim, *dims, latent_dim)


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


@pytest.mark.parametrize("stage", ["teach", "adapt"])
@given(
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(MIN_FRAMES, 40), st.integers(1, 10)),
    hidden_dims=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    latent_dim=st.integers(1, 100),
    num_actions=st.integers(0, 30),
)
def test_the_weights_always_fit_into_their_mailbox(
    stage: str, sizes: tuple[int, int, int, int], hidden_dims: list[int], latent_dim: int, num_actions: int
) -> None:
    obs_dim, privileged_dim, frames, frame_dim = sizes
    spec = spec_of(frames, frame_dim, privileged_dim, obs_dim, num_actions)
    algo = AlgoConfig(
        name="hora", stage=stage, hidden_dims=tuple(hidden_dims), latent_dim=latent_dim, normalize_obs=True
    )
    assert 4 * flat_size(make_policy(algo, spec)) <= max_policy_nbytes(RunConfig(algo=algo), spec)
