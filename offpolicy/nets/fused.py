"""Perceptrons of equal shape, evaluated and differentiated side by side in memory that is kept between updates.

A `FusedMlp` computes what the `nn.Sequential`s that it is made of compute, with the same parameters. What differs:

- C networks on one input are one batched product per layer. Two threads share it without waiting for each other.
- Activations and their gradients are written where those of the last update were. Fresh memory of this size costs a
  quarter of an update: the kernel maps and clears it page by page, in every update anew.
- The gradients of the parameters are written straight into the block that the optimiser reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_aten = torch.ops.aten


class Activation(NamedTuple):
    """An activation whose derivative is a function of its result; both work in place."""

    apply: Callable[[Tensor], Tensor]
    differentiate: Callable[[Tensor, Tensor], Tensor]  # gradient of the result, and the result, to that of the input


ACTIVATIONS: Mapping[type[nn.Module], Activation] = {
    nn.ReLU: Activation(torch.relu_, lambda d, h: _aten.threshold_backward.grad_input(d, h, 0, grad_input=d)),
    nn.Tanh: Activation(torch.tanh_, lambda d, h: _aten.tanh_backward.grad_input(d, h, grad_input=d)),
    nn.ELU: Activation(
        nn.functional.elu_, lambda d, h: _aten.elu_backward.grad_input(d, 1.0, 1.0, 1.0, True, h, grad_input=d)
    ),
}


class Workspace:
    """Memory that one call writes and reads, shared by the networks of a learner.

    Only batches of as many rows as are learnt from have it: others are too rare, or too large, to keep memory for.
    """

    def __init__(self) -> None:
        self.rows: set[int] = set()
        self._blocks: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def block(self, name: str, shape: tuple[int, int, int], like: Tensor) -> Tensor:
        """Returns memory of the shape [C, rows, n], with whatever it holds."""
        if shape[1] not in self.rows:
            return like.new_empty(shape)
        if (name, shape) not in self._blocks:
            with torch.inference_mode(False):  # memory made in it could not be written outside of it
                self._blocks[name, shape] = like.new_empty(shape)
        return self._blocks[name, shape]


class Layer:
    """A linear layer of C networks, its parameters and the memory for their gradients; both are shared, not copied."""

    def __init__(self, linears: Sequence[nn.Linear], gradients: Mapping[Tensor, Tensor]) -> None:
        self.weight = stacked([linear.weight.detach() for linear in linears])  # [C, out, in]
        self.weight_t = self.weight.mT
        self.bias = stacked([linear.bias.detach() for linear in linears])[:, None]  # [C, 1, out]
        self.num_nets, self.num_outputs, self.num_inputs = self.weight.shape
        if gradients:
            self.weight_gradient = stacked([gradients[linear.weight] for linear in linears])
            self.bias_gradient = stacked([gradients[linear.bias] for linear in linears])[:, None]


class Memory:
    """The memory of one pass of B rows through the layers: what the backward pass reads, and what it writes."""

    def __init__(self, layers: Sequence[Layer], workspace: Workspace, rows: int) -> None:
        like, (first, *others) = layers[0].weight, layers
        self.inputs = like.new_empty((1, rows, first.num_inputs))
        self.hidden = [like.new_empty((layer.num_nets, rows, layer.num_outputs)) for layer in layers[:-1]]
        self.gradients = [
            workspace.block(f"gradient {i % 2}", (layer.num_nets, rows, layer.num_inputs), like)
            for i, layer in enumerate(others)
        ]
        # With few inputs a BLAS on the CPU makes the transposed gradient of the weights in half the time.
        is_narrow = like.device.type == "cpu" and 4 * first.num_inputs <= first.num_outputs
        shape = (first.num_nets, first.num_inputs, first.num_outputs)
        self.first_gradient = like.new_empty(shape) if is_narrow else None


class FusedMlp:
    """C perceptrons of equal layers on one input, given in parts side by side: [..., I_1], ... -> [C, ..., O].

    The output is fresh memory. What a forward pass keeps for its backward pass is not: another forward pass of as many
    rows overwrites it, and the backward pass of the first then raises `RuntimeError`, as autograd does.
    """

    def __init__(self, nets: Sequence[nn.Sequential], gradients: Mapping[Tensor, Tensor], workspace: Workspace) -> None:
        """`gradients` is the memory for the gradient of every parameter; of networks that never learn it is empty."""
        self.layers = [Layer(linears, gradients) for linears in zip(*map(linears_of, nets), strict=True)]
        self.parameters = tuple(parameter for net in nets for parameter in net.parameters())
        self.gradients = tuple(gradients[parameter] for parameter in self.parameters if gradients)
        self.activation = ACTIVATIONS[type(nets[0][1])]
        self._workspace = workspace
        self._memory: dict[int, Memory] = {}  # by rows, of those that are learnt from
        self._scratch: dict[int, list[Tensor]] = {}  # by rows, of the same ones
        self._evaluated: tuple[Tensor, Memory]

    def __deepcopy__(self, memo: object) -> None:
        """A copy of a network has parameters of its own, which this object does not know: it has no fused path."""

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Returns the outputs, differentiable by parameters and inputs."""
        return self._apply(inputs, self.parameters)

    def frozen(self, *inputs: Tensor) -> Tensor:
        """Returns the outputs, differentiable by the inputs alone."""
        return self._apply(inputs, ())

    def _apply(self, inputs: tuple[Tensor, ...], parameters: tuple[nn.Parameter, ...]) -> Tensor:
        is_traced = torch.compiler.is_compiling()  # where addresses are unknown
        if not is_traced and self.parameters[0].data_ptr() != self.layers[0].weight.data_ptr():
            raise RuntimeError("the parameters have moved since they were fused")
        lead = inputs[0].shape[:-1]
        rows = inputs if len(lead) == 1 else tuple(part.reshape(-1, part.shape[-1]) for part in inputs)
        if torch.is_grad_enabled():
            output: Tensor = _Fused.apply(self, len(rows), *rows, *parameters)  # type: ignore[no-untyped-call]
        else:
            output = self.infer(rows)
        return output if len(lead) == 1 else output.reshape(-1, *lead, output.shape[-1])

    def evaluate(self, *parts: Tensor) -> Tensor:
        """Returns the outputs outside of autograd, and keeps what `pull_back` needs. [B, I_1], ... -> [C, B, O]."""
        memory = self.memory(parts[0].shape[0])
        inputs = side_by_side(parts, memory.inputs)
        self._evaluated = inputs, memory
        return self.forward(inputs, memory.hidden)

    def pull_back(self, d_output: Tensor) -> None:
        """Writes the gradients of the parameters from that of the outputs of the last `evaluate`. [C, B, O]."""
        self.backward(d_output, *self._evaluated, learns=True)

    def pull_back_to_input(self, d_output: Tensor, start: int) -> Tensor:
        """Returns the gradient [B, I - start] of the inputs from column `start` on; leaves the parameters' alone."""
        above = self.backward(d_output, *self._evaluated, learns=False)
        return self.input_gradient(above, start, self.layers[0].num_inputs - start)

    def memory(self, rows: int) -> Memory:
        """Returns the memory of a pass that is differentiated."""
        if rows not in self._memory:
            self._workspace.rows.add(rows)
            self._memory[rows] = self._new_memory(rows)
        return self._memory[rows]

    def _new_memory(self, rows: int) -> Memory:
        return Memory(self.layers, self._workspace, rows)

    def infer(self, parts: Sequence[Tensor]) -> Tensor:
        """Returns the outputs of a pass of which nothing is kept. [B, I_1], ... -> [C, B, O]."""
        rows = parts[0].shape[0]
        inputs, *hidden = self._scratch.get(rows) or self._make_scratch(rows)
        return self.forward(side_by_side(parts, inputs), hidden)

    def _make_scratch(self, rows: int) -> list[Tensor]:
        """Returns memory for inputs and activations, two in turns; kept for batches of as many rows as are learnt."""
        first = self.layers[0]
        inputs = self._workspace.block("inputs", (1, rows, first.num_inputs), first.weight)
        scratch = [inputs, *self._hidden_scratch(rows)]
        if rows in self._workspace.rows:
            self._scratch[rows] = scratch
        return scratch

    def _hidden_scratch(self, rows: int) -> list[Tensor]:
        shapes = [(layer.num_nets, rows, layer.num_outputs) for layer in self.layers[:-1]]
        like, block = self.layers[0].weight, self._workspace.block
        return [block(f"hidden {i % 2}", shape, like) for i, shape in enumerate(shapes)]

    def forward(self, inputs: Tensor, hidden: Sequence[Tensor]) -> Tensor:
        """Fills the activations `hidden`; returns the outputs. [1, B, I] -> [C, B, O]."""
        below = inputs.expand(self.layers[0].num_nets, -1, -1)
        for layer, activations in zip(self.layers, hidden, strict=False):
            torch.baddbmm(layer.bias, below, layer.weight_t, out=activations)
            below = self.activation.apply(activations)
        return torch.baddbmm(self.layers[-1].bias, below, self.layers[-1].weight_t)

    def backward(self, d_output: Tensor, inputs: Tensor, memory: Memory, *, learns: bool) -> Tensor:
        """Fills the gradients, if it `learns`; returns that of the first layer before its activation. -> [C, B, H]."""
        above = d_output
        for i in range(len(self.layers) - 1, 0, -1):
            layer, below, gradient = self.layers[i], memory.hidden[i - 1], memory.gradients[i - 1]
            if learns:
                torch.bmm(above.mT, below, out=layer.weight_gradient)
                torch.sum(above, dim=1, keepdim=True, out=layer.bias_gradient)
            above = self.activation.differentiate(torch.bmm(above, layer.weight, out=gradient), below)
        if learns:
            self._write_first_gradients(above, inputs, memory.first_gradient)
        return above

    def _write_first_gradients(self, above: Tensor, inputs: Tensor, transposed: Tensor | None) -> None:
        first = self.layers[0]
        below = inputs.expand(first.num_nets, -1, -1)
        if transposed is None:
            torch.bmm(above.mT, below, out=first.weight_gradient)
        else:
            first.weight_gradient.copy_(torch.bmm(below.mT, above, out=transposed).mT)
        torch.sum(above, dim=1, keepdim=True, out=first.bias_gradient)

    def input_gradient(self, above: Tensor, start: int, width: int) -> Tensor:
        """Returns the gradient [B, width] of the inputs from column `start` on, from that above the first product."""
        columns = self.layers[0].weight_t[:, start : start + width]
        by_network = torch.bmm(columns, above.mT)  # [C, width, B]: with few columns the faster order
        return (by_network[0] if self.layers[0].num_nets == 1 else by_network.sum(dim=0)).t()


class _Fused(torch.autograd.Function):
    """A `FusedMlp` in a graph of autograd."""

    @staticmethod
    def forward(ctx: Any, net: FusedMlp, num_inputs: int, *tensors: Tensor) -> Tensor:  # Any: torch declares no type
        parts = tensors[:num_inputs]
        if not any(ctx.needs_input_grad):
            return net.infer(parts)
        memory = net.memory(parts[0].shape[0])
        inputs = side_by_side(parts, memory.inputs)
        output = net.forward(inputs, memory.hidden)
        ctx.net, ctx.memory, ctx.widths = net, memory, [part.shape[1] for part in parts]
        # Saved, so that autograd sees when they are overwritten before the backward pass.
        ctx.save_for_backward(inputs, *memory.hidden, *(layer.weight for layer in net.layers))
        return output

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the wrapper names no parameter
        ctx: Any,  # Any: torch declares no type
        *grad_outputs: Tensor,
    ) -> tuple[Tensor | None, ...]:
        (d_output,) = grad_outputs
        net: FusedMlp = ctx.net
        inputs = ctx.saved_tensors[0]
        wanted = ctx.needs_input_grad[2:]
        by_input, by_parameter = wanted[: len(ctx.widths)], wanted[len(ctx.widths) :]
        above = net.backward(d_output, inputs, ctx.memory, learns=any(by_parameter))
        starts = itertools.accumulate(ctx.widths, initial=0)
        gradients = [
            net.input_gradient(above, start, width) if is_wanted else None
            for start, width, is_wanted in zip(starts, ctx.widths, by_input, strict=False)
        ]
        return (None, None, *gradients, *(net.gradients if any(by_parameter) else (None,) * len(by_parameter)))


def side_by_side(parts: Sequence[Tensor], memory: Tensor) -> Tensor:
    """Returns parts [B, I_k] as one input [1, B, I], in the `memory` [1, B, I] if there are several."""
    if len(parts) == 1:
        return (parts[0] if parts[0].stride(1) == 1 else parts[0].contiguous())[None]
    torch.cat(tuple(parts), dim=1, out=memory[0])
    return memory


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Returns tensors of one shape as one [C, ...] in the same memory; raises `ValueError` if not evenly spaced."""
    first, offsets = tensors[0], [tensor.storage_offset() for tensor in tensors]
    step = offsets[1] - offsets[0] if len(tensors) > 1 else first.numel()
    storages = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    if len(storages) > 1 or offsets != [offsets[0] + i * step for i in range(len(tensors))]:
        raise ValueError("parameters that are fused must lie in one block, evenly spaced")
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()), offsets[0])


def linears_of(net: nn.Sequential) -> list[nn.Linear]:
    """Returns the linear layers."""
    return [layer for layer in net if isinstance(layer, nn.Linear)]


def can_fuse(net: nn.Sequential) -> bool:
    """True for linear layers with one activation of `ACTIVATIONS` between each two: no layer norm, no SiLU."""
    kinds = [type(layer) for layer in net]
    return kinds[1] in ACTIVATIONS and kinds == [nn.Linear, *(kinds[1], nn.Linear) * (len(kinds) // 2)]
