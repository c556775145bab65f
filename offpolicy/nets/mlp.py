"""Multi-layer perceptrons."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

# In-place ReLU: its backward needs only its result, and the linear layer before it only its own input.
ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.ReLU(inplace=True),
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


class Mlp(nn.Sequential):
    """A perceptron, whose output is float32 also where autocast makes its products in bfloat16."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # the name in nn.Sequential
        """[..., input] -> [..., output]."""
        output: Tensor = super().forward(input)  # type: ignore[no-untyped-call]  # of nn.Sequential
        return output.float()


def mlp(input_dim: int, hidden_dims: Sequence[int], output_dim: int, activation: str, layer_norm: bool = False) -> Mlp:
    """Returns linear, [layer norm], activation per hidden layer, then a linear output: [..., input] -> [..., output].

    Weights have torch's default initialisation, drawn from the global CPU generator. Raises `KeyError` for an
    activation that is not in `ACTIVATIONS`.
    """
    layers: list[nn.Module] = []
    for in_dim, out_dim in zip((input_dim, *hidden_dims), hidden_dims, strict=False):
        layers.append(nn.Linear(in_dim, out_dim))
        if layer_norm:
            layers.append(nn.LayerNorm(out_dim))
        layers.append(ACTIVATIONS[activation]())
    layers.append(nn.Linear(hidden_dims[-1], output_dim))
    return Mlp(*layers)


def orthogonal_(net: Mlp, head_gain: float) -> Mlp:
    """Initialises the linear layers of `net` in place: orthogonal, gain sqrt(2), the last one `head_gain`; biases 0.

    Engstrom et al. (arXiv:2005.12729) and Andrychowicz et al. (arXiv:2006.05990, C.8) show which details matter.
    """
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, head_gain if layer is layers[-1] else math.sqrt(2.0))
        nn.init.zeros_(layer.bias)
    return net
