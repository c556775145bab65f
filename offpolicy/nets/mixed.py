"""Fused perceptrons whose products between hidden layers take bfloat16 factors (`algo.precision=bf16`).

As in mixed-precision training (arXiv:1710.03740, arXiv:1905.12322) the parameters and the optimiser's moments are
float32; a product rounds its factors to 8 bits of mantissa, adds up in float32 and is rounded once. That is true of the
gradients of the weights between hidden layers too, which are then copied to the float32 that the optimiser reads. The
first and the last layer are float32: an observation such as a position of 1,000 would be known to 8 units, a value of
300 to 2. With two hidden layers or more what is left are most of the operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from offpolicy.nets.fused import (
    BatchMemory,
    FusedMlp,
    Layer,
    LayerGradients,
    Memory,
    NetInput,
    Workspace,
    can_fuse,
    fill_first,
    linears_of,
)

PRODUCT_DTYPE = torch.bfloat16
FEWEST_LAYERS = 3  # linear layers from which there is one between two hidden layers


class RoundedLayer:
    """A layer between hidden ones: what its products read and write in bfloat16."""

    def __init__(self, layer: Layer, *, learns: bool) -> None:
        self.layer = layer
        self.weight, self.bias = layer.weight.to(PRODUCT_DTYPE), layer.bias.to(PRODUCT_DTYPE)
        self.weight_t = self.weight.mT
        self.weight_gradient = torch.empty_like(self.weight) if learns else None

    def fill(self, gradients: LayerGradients, above: Tensor, below: Tensor) -> None:
        """Fills the gradients of the parameters. [C, B, out], [C, B, in], both bfloat16."""
        assert self.weight_gradient is not None  # true of networks that learn
        gradients.weight.copy_(torch.bmm(above.mT, below, out=self.weight_gradient))
        torch.sum(above, dim=1, keepdim=True, dtype=torch.float32, out=gradients.bias)


class MixedMemory(Memory):
    """As `Memory`. `hidden` holds the activations as each product reads them, see `MixedMlp.forward`."""

    def __init__(self, layers: Sequence[Layer], shared: BatchMemory, rows: int) -> None:
        super().__init__(layers, shared, rows)
        like = layers[0].weight
        shapes = [(layer.num_nets, rows, layer.num_outputs) for layer in layers[:-1]]
        rounded = [like.new_empty(shape, dtype=PRODUCT_DTYPE) for shape in shapes]
        self.hidden = [like.new_empty(shapes[0]), *rounded, like.new_empty(shapes[-1])]
        self.rounded_gradients = [
            shared.block(f"rounded gradient {i % 2}", shape, rounded[0]) for i, shape in enumerate(shapes)
        ]

    def rows_from(self, start: int) -> MixedMemory:
        """See `Memory`."""
        part = super().rows_from(start)
        assert isinstance(part, MixedMemory)  # a copy of this one
        part.rounded_gradients = [block[:, start:] for block in self.rounded_gradients]
        return part


class MixedMlp(FusedMlp):
    """As `FusedMlp`, for perceptrons of at least two hidden layers."""

    def __init__(self, nets: Sequence[nn.Sequential], gradients: Mapping[Tensor, Tensor], workspace: Workspace) -> None:
        """See `FusedMlp`."""
        super().__init__(nets, gradients, workspace)
        self._middle = [RoundedLayer(layer, learns=bool(gradients)) for layer in self.layers[1:-1]]
        self._rounded = [part for layer in self._middle for part in (layer.weight, layer.bias)]
        self._exact = [part for layer in self.layers[1:-1] for part in (layer.weight, layer.bias)]

    def forward(self, inputs: NetInput, hidden: Sequence[Tensor]) -> Tensor:
        """Fills `hidden`; returns the outputs. -> [C, B, O].

        `hidden` is the first activations in float32, those of each hidden layer in bfloat16, the last in float32.
        """
        torch._foreach_copy_(self._rounded, self._exact)  # optimiser, Polyak step or checkpoint may have moved them
        first, last = self.layers[0], self.layers[-1]
        exact, below, *others, top = hidden
        below.copy_(first.products.forward(first.bias, inputs.below, first.weight_t, self.activation, exact))
        for layer, activations in zip(self._middle, others, strict=True):
            torch.baddbmm(layer.bias, below, layer.weight_t, out=activations)
            below = self.activation.apply(activations)
        return last.outputs(top.copy_(below))

    def backward(
        self, d_output: Tensor, inputs: NetInput, memory: Memory, gradients: Sequence[LayerGradients] | None
    ) -> Tensor:
        """See `FusedMlp.backward`."""
        assert isinstance(memory, MixedMemory)  # made by `_new_memory`
        last, top = self.layers[-1], memory.hidden[-1]
        if gradients is not None:
            torch.bmm(d_output.mT, top, out=gradients[-1].weight)
            torch.sum(d_output, dim=1, keepdim=True, out=gradients[-1].bias)
        exact = torch.bmm(d_output, last.weight, out=memory.gradients[-1])
        above = memory.rounded_gradients[-1].copy_(self.activation.differentiate(exact, top))
        for i in range(len(self._middle) - 1, -1, -1):
            layer, below = self._middle[i], memory.hidden[i + 1]
            if gradients is not None:
                layer.fill(gradients[i + 1], above, below)
            gradient = torch.bmm(above, layer.weight, out=memory.rounded_gradients[i])
            above = self.activation.differentiate(gradient, below)
        above = memory.gradients[0].copy_(above)
        if gradients is not None:
            fill_first(self.layers[0], gradients[0], above, inputs, memory)
        return above

    def _new_memory(self, shared: BatchMemory, rows: int) -> MixedMemory:
        return MixedMemory(self.layers, shared, rows)

    def _hidden_scratch(self, shared: BatchMemory, rows: int) -> list[Tensor]:
        exact, rounded, block = self.layers[0].weight, self._middle[0].weight, shared.block
        shapes = [(layer.num_nets, rows, layer.num_outputs) for layer in self.layers[:-1]]
        turns = [block(f"rounded hidden {i % 2}", shape, rounded) for i, shape in enumerate(shapes)]
        return [block("hidden 0", shapes[0], exact), *turns, block("hidden 1", shapes[-1], exact)]


def can_round(net: nn.Sequential) -> bool:
    """True for a perceptron with a layer between hidden ones that can be fused."""
    return can_fuse(net) and len(linears_of(net)) >= FEWEST_LAYERS
