"""Encoders of plug-ins in front of perceptrons: `algo.network`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from offpolicy import plugins
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.config.extensions import NetworkInfo, network_plugin
from offpolicy.errors import ConfigError
from offpolicy.nets.mlp import Mlp
from offpolicy.types import SpaceSpec

Network = TypeVar("Network", bound=nn.Module)


class EncodedInput(nn.Module):
    """An encoder of the first O columns of an input, such as those of a critic's pair of observation and action."""

    def __init__(self, encoder: nn.Module, obs_dim: int) -> None:
        super().__init__()
        self.encoder, self.obs_dim = encoder, obs_dim

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # the name in nn.Module's own
        """[..., O + rest] -> [..., E + rest]."""
        encoded: Tensor = self.encoder(input[..., : self.obs_dim])
        if input.shape[-1] == self.obs_dim:
            return encoded
        return torch.cat((encoded, input[..., self.obs_dim :]), dim=-1)


def with_encoder(algo: AlgoConfig, spec: SpaceSpec, make: Callable[[SpaceSpec], Network]) -> Network:
    """Returns the network of `make`, each of whose perceptrons has the encoder of `algo.network` before it, if any.

    Encoders are initialised from torch's global CPU generator. Raises `ConfigError` naming the plug-in for one that
    cannot be made, or that is not as `NetworkInfo` says.
    """
    name = algo.network.name
    if name is None:
        return make(spec)
    plugin = network_plugin(name)
    cls = plugins.resolve(plugin, plugins.load(plugin, NetworkInfo).module)

    def encoder() -> nn.Module:
        try:
            made: nn.Module = cls(algo.network, spec.obs_dim)
            features = made(torch.zeros(1, spec.obs_dim))
        except Exception as error:
            raise ConfigError(f"{plugin}: its encoder failed: {type(error).__name__}: {error}") from error
        _check(plugin, made, features)
        return made

    network = make(replace(spec, obs_dim=int(getattr(encoder(), "out_dim"))))  # noqa: B009  # of the plug-in's class
    for child, module in list(network.named_children()):
        if isinstance(module, Mlp):
            setattr(network, child, Mlp(EncodedInput(encoder(), spec.obs_dim), *module))
    return network


def _check(plugin: plugins.Plugin, encoder: nn.Module, features: Tensor) -> None:
    out_dim = getattr(encoder, "out_dim", None)
    if not isinstance(out_dim, int) or features.shape != (1, out_dim):
        raise ConfigError(f"{plugin}: its encoder returns {list(features.shape)}, and its out_dim is {out_dim!r}")
    names = [name for name, buffer in encoder.named_buffers() if math.prod(buffer.shape)]
    if names:
        raise ConfigError(f"{plugin}: its encoder has buffers ({', '.join(names)}), which no collector gets")
