"""Multi-layer perceptrons, and the encoders of plug-ins in front of them: `algo.network`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from offpolicy import plugins
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.config.extensions import NetworkInfo, network_plugin
from offpolicy.errors import ConfigError
from offpolicy.types import SpaceSpec

Network = TypeVar("Network", bound=nn.Module)

# In-place ReLU: its backward needs only its result, and the linear layer before it only its own input.
ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.ReLU(inplace=True),
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


def mlp(
    input_dim: int, hidden_dims: Sequence[int], output_dim: int, activation: str, layer_norm: bool = False
) -> nn.Sequential:
    """Returns linear, [layer norm], activation per hidden layer, then a linear output: [..., input] -> [..., output].

    Networks convert its output to float32: autocast makes its products in bfloat16.
    Weights have torch's default initialisation, drawn from the global CPU generator.
    """
    layers: list[nn.Module] = []
    for in_dim, out_dim in zip((input_dim, *hidden_dims), hidden_dims, strict=False):
        layers.append(nn.Linear(in_dim, out_dim))
        if layer_norm:
            layers.append(nn.LayerNorm(out_dim))
        layers.append(ACTIVATIONS[activation]())
    layers.append(nn.Linear(hidden_dims[-1], output_dim))
    return nn.Sequential(*layers)


def orthogonal_(net: nn.Sequential, head_gain: float) -> nn.Sequential:
    """Initialises the linear layers of `net` in place: orthogonal, gain sqrt(2), the last one `head_gain`; biases 0.

    Engstrom et al. (arXiv:2005.12729) and Andrychowicz et al. (arXiv:2006.05990, C.8) show which details matter.
    """
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, head_gain if layer is layers[-1] else math.sqrt(2.0))
        nn.init.zeros_(layer.bias)
    return net


class Columns(nn.Module):
    """A part of an observation. [..., O] -> [..., columns]."""

    def __init__(self, columns: slice) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, obs: Tensor) -> Tensor:
        """Returns a view of the columns."""
        return obs[..., self.columns]


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

    Raises `ConfigError` naming the plug-in for an encoder that cannot be made, or is not as `NetworkInfo` says.
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
        out_dim = getattr(made, "out_dim", None)
        if not isinstance(out_dim, int) or features.shape != (1, out_dim):
            raise ConfigError(f"{plugin}: its encoder returns {list(features.shape)}, and its out_dim is {out_dim!r}")
        if names := [name for name, buffer in made.named_buffers() if buffer.numel()]:
            raise ConfigError(f"{plugin}: its encoder has buffers ({', '.join(names)}), which no collector gets")
        return made

    network = make(replace(spec, obs_dim=int(getattr(encoder(), "out_dim"))))  # noqa: B009  # of the plug-in's class
    for child, module in list(network.named_children()):
        if isinstance(module, nn.Sequential):
            setattr(network, child, nn.Sequential(EncodedInput(encoder(), spec.obs_dim), *module))
    return network
