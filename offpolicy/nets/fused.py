"""Perceptrons of equal shape, evaluated and differentiated side by side in memory that is kept between updates.

A `FusedMlp` computes what the `nn.Sequential`s that it is made of compute, with the same parameters. What differs:

- C networks on one input are one batched product per layer. Two threads share it without waiting for each other.
- Activations and their gradients are written where those of the last update were. Fresh memory of this size costs a
  quarter of an update: the kernel maps and clears it page by page, in every update anew.
- `pull_back` writes the gradients of the parameters straight into the block that the optimiser reads.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from offpolicy.nets.activations import FUSED_ACTIVATIONS
from offpolicy.nets.products import products_of_layer
from offpolicy.onednn import BLAS

NARROW = 4  # outputs per input of a first layer whose gradient the CPU makes transposed
KEPT_SIZES = 4  # numbers of rows that memory is kept for


class BatchMemory:
    """What is kept for batches of one number of rows, by the networks of one call of `fuse`."""

    def __init__(self) -> None:
        self.passes: dict[tuple[FusedMlp, int], Memory] = {}  # by network and first differentiated row
        self.scratch: dict[FusedMlp, tuple[NetInput, list[Tensor]]] = {}
        self._blocks: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def block(self, name: str, shape: tuple[int, int, int], like: Tensor) -> Tensor:
        """Returns memory of the shape [C, rows, n] that the networks share, with whatever it holds."""
        if (name, shape) not in self._blocks:
            with torch.inference_mode(False):  # memory made in it could not be written outside of it
                self._blocks[name, shape] = like.new_empty(shape)
        return self._blocks[name, shape]


class Workspace:
    """What the networks of one call of `fuse` share: memory kept between calls, by the rows of the batches.

    Only batches of as many rows as are learnt from have it, the last `KEPT_SIZES` of them: others are too rare, or too
    large, to keep memory for.
    """

    def __init__(self, library: str = BLAS) -> None:
        """`library` makes products on a CPU, see `nets/products.py`."""
        self.library = library
        self.by_rows: dict[int, BatchMemory] = {}

    def keep(self, rows: int) -> BatchMemory:
        """Returns the memory of batches that are learnt from; gives up that of the oldest of `KEPT_SIZES` others."""
        if rows not in self.by_rows:
            if len(self.by_rows) == KEPT_SIZES:
                del self.by_rows[next(iter(self.by_rows))]
            self.by_rows[rows] = BatchMemory()
        return self.by_rows[rows]


class LayerGradients(NamedTuple):
    """The gradients of a layer of C networks."""

    weight: Tensor  # [C, out, in]
    bias: Tensor  # [C, 1, out]

    @classmethod
    def of(cls, linears: Sequence[nn.Linear], memory: Mapping[Tensor, Tensor]) -> LayerGradients:
        """The gradients in the memory that each parameter has for its own."""
        weights, biases = ([memory[getattr(linear, name)] for linear in linears] for name in ("weight", "bias"))
        return cls(stacked(weights), stacked(biases)[:, None])


class Layer:
    """A linear layer of C networks: their parameters, shared, not copied, and what makes its products."""

    def __init__(self, linears: Sequence[nn.Linear], library: str = BLAS) -> None:
        self.weight = stacked([linear.weight.detach() for linear in linears])  # [C, out, in]
        self.weight_t = self.weight.mT
        self.bias = stacked([linear.bias.detach() for linear in linears])[:, None]  # [C, 1, out]
        self.num_nets, self.num_outputs, self.num_inputs = self.weight.shape
        self.products = products_of_layer(library, self.weight)

    def outputs(self, below: Tensor) -> Tensor:
        """Returns what the layer makes of [C, B, in], in fresh memory. -> [C, B, out].

        With one output the rows are the right factor: of two networks the product then takes a third of the time, on
        one thread of an Intel Xeon.
        """
        if self.num_outputs == 1:
            return torch.baddbmm(self.bias, self.weight, below.mT).mT
        return torch.baddbmm(self.bias, below, self.weight_t)

    def fresh_gradients(self) -> LayerGradients:
        """Returns gradients in memory of their own."""
        return LayerGradients(torch.empty_like(self.weight), torch.empty_like(self.bias))


class NetInput:
    """Rows [B, I] as the input of C networks.

    The views of kept memory, here and in `Memory`, are made once: a new one costs what a small kernel does. Code that
    torch.compile makes gets new ones: it has no CUDA graph for what writes one of several inputs in the same memory.
    """

    def __init__(self, rows: Tensor, num_nets: int) -> None:
        self.rows, self.num_nets = rows, num_nets
        self._below = rows.expand(num_nets, -1, -1)
        self._below_t = self._below.mT

    @property
    def below(self) -> Tensor:
        """The rows for each network. [C, B, I]."""
        return self.rows.expand(self.num_nets, -1, -1) if torch.compiler.is_compiling() else self._below

    @property
    def below_t(self) -> Tensor:
        """These transposed. [C, I, B]."""
        return self.below.mT if torch.compiler.is_compiling() else self._below_t

    def filled(self, parts: Sequence[Tensor]) -> NetInput:
        """Returns parts [B, I_k] side by side: in the memory of this input if there are several."""
        if len(parts) == 1:
            return NetInput(parts[0] if parts[0].stride(1) == 1 else parts[0].contiguous(), self.num_nets)
        torch.cat(tuple(parts), dim=1, out=self.rows)
        return self


class Memory:
    """The memory of one pass of B rows through the layers: what the backward pass reads, and what it writes."""

    def __init__(self, layers: Sequence[Layer], shared: BatchMemory, rows: int) -> None:
        like, (first, *others) = layers[0].weight, layers
        self.inputs = NetInput(like.new_empty((rows, first.num_inputs)), first.num_nets)
        self.hidden = [like.new_empty((layer.num_nets, rows, layer.num_outputs)) for layer in layers[:-1]]
        self.gradients = [
            shared.block(f"gradient {i % 2}", (layer.num_nets, rows, layer.num_inputs), like)
            for i, layer in enumerate(others)
        ]
        self._gradients_t = [block.mT for block in self.gradients]
        # With few inputs a BLAS on the CPU makes the transposed gradient of the weights in half the time.
        is_narrow = like.device.type == "cpu" and NARROW * first.num_inputs <= first.num_outputs
        shape = (first.num_nets, first.num_inputs, first.num_outputs)
        self.first_gradient = like.new_empty(shape) if is_narrow else None

    def rows_from(self, start: int) -> Memory:
        """Returns the same memory without what it has for the rows before `start`."""
        part = copy.copy(self)
        part.inputs = NetInput(self.inputs.rows[start:], self.inputs.num_nets)
        part.hidden, part.gradients = (
            [block[:, start:] for block in blocks] for blocks in (self.hidden, self.gradients)
        )
        part._gradients_t = [block.mT for block in part.gradients]
        return part

    def gradient_t(self, layer: int) -> Tensor:
        """Returns the gradient of the products of a layer but the last, transposed. [C, out, B]."""
        return self.gradients[layer].mT if torch.compiler.is_compiling() else self._gradients_t[layer]


class FusedMlp:
    """C perceptrons of equal layers on one input, given in parts side by side: [..., I_1], ... -> [C, ..., O].

    The output is fresh memory. What a forward pass keeps for its backward pass is not: another forward pass of as many
    rows overwrites it, as one of its target does. The backward pass of the first then raises `RuntimeError`, as
    autograd does. The calls:

    - `net(...)`: in a graph of autograd, or without one under `no_grad`; `frozen`: in a graph of the inputs alone.
    - `evaluate`, then `pull_back` or `pull_back_to_input`: without autograd, from the last `evaluate`.
    - `infer`: outputs alone. `forward` and `backward` are what all of these are made of.

    Of shapes, H is the width of the first hidden layer, I that of the input, I_k of its parts, O of the output.
    """

    def __init__(self, nets: Sequence[nn.Sequential], gradients: Mapping[Tensor, Tensor], workspace: Workspace) -> None:
        """`gradients` is the memory for the gradient of every parameter; of networks that never learn it is empty.

        The workspace's library makes the products of all layers but the last, where they are wide.
        """
        linears = list(zip(*map(linears_of, nets), strict=True))
        self.layers = [*(Layer(of_layer, workspace.library) for of_layer in linears[:-1]), Layer(linears[-1])]
        self.parameters = tuple(parameter for net in nets for parameter in net.parameters())
        self.activation = FUSED_ACTIVATIONS[type(nets[0][1])]
        self._gradients = [LayerGradients.of(of_layer, gradients) for of_layer in linears] if gradients else []
        self._workspace = workspace
        # The network that this one, its target, follows: `infer` writes where its passes keep their activations, which
        # are in the processor's caches.
        self.source: FusedMlp | None = None
        self._evaluated: tuple[NetInput, Memory]
        self._version: int | None = None  # of the activations of the last `evaluate`; None: traced, where it is unknown

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
        return self._evaluate(memory.inputs.filled(parts), memory)

    def evaluate_after(self, before: Tensor, inputs: Tensor) -> Tensor:
        """As `evaluate`, of rows [N, I] that are not differentiated and then of others [B, I]. -> [C, N + B, O]."""
        start, rows = len(before), len(before) + len(inputs)
        memory, differentiated = self.memory(rows), self.memory(rows, start)
        torch.cat((before, inputs), out=memory.inputs.rows)
        output = self._evaluate(memory.inputs, memory)
        self._evaluated = differentiated.inputs, differentiated
        return output

    def _evaluate(self, inputs: NetInput, memory: Memory) -> Tensor:
        output = self.forward(inputs, memory.hidden)
        self._evaluated = inputs, memory
        self._version = None if torch.compiler.is_compiling() else memory.hidden[0]._version
        return output

    def pull_back(self, d_output: Tensor) -> None:
        """Writes the gradients of the parameters from that of the outputs of the last `evaluate`. [C, B, O]."""
        self.backward(d_output, *self._last_pass(), self._gradients)

    def pull_back_to_input(self, d_output: Tensor, start: int) -> Tensor:
        """Returns the gradient [B, I - start] of the inputs from column `start` on; leaves the parameters' alone."""
        above = self.backward(d_output, *self._last_pass(), None)
        return self.input_gradient(above, start, self.layers[0].num_inputs - start)

    def _last_pass(self) -> tuple[NetInput, Memory]:
        """Returns what `evaluate` kept. Raises `RuntimeError` if another pass has overwritten it."""
        is_known = not torch.compiler.is_compiling() and self._version is not None
        if is_known and self._evaluated[1].hidden[0]._version != self._version:
            raise RuntimeError("the activations have been overwritten by another pass since they were evaluated")
        return self._evaluated

    def memory(self, rows: int, start: int = 0) -> Memory:
        """Returns the memory of a pass of which the rows from `start` on are differentiated."""
        kept = self._workspace.keep(rows)
        if (self, start) not in kept.passes:
            with torch.inference_mode(False):  # as in `BatchMemory.block`
                new = self.memory(rows).rows_from(start) if start else self._new_memory(kept, rows)
            kept.passes[self, start] = new
            if start:  # batches of the rows that are differentiated may come without those before them, too
                self._workspace.keep(rows - start)
        return kept.passes[self, start]

    def _new_memory(self, shared: BatchMemory, rows: int) -> Memory:
        return Memory(self.layers, shared, rows)

    def infer(self, parts: Sequence[Tensor]) -> Tensor:
        """Returns the outputs of a pass of which nothing is kept. [B, I_1], ... -> [C, B, O].

        That of a target overwrites what its source has kept: call it before the source's `evaluate`, or after
        `pull_back`.
        """
        rows = len(parts[0])
        kept = self._workspace.by_rows.get(rows)
        if kept is None:
            inputs, hidden = self._make_scratch(BatchMemory(), rows)
        elif self.source is not None and (self.source, 0) in kept.passes:
            memory = kept.passes[self.source, 0]
            inputs, hidden = memory.inputs, memory.hidden
        else:
            if self not in kept.scratch:
                kept.scratch[self] = self._make_scratch(kept, rows)
            inputs, hidden = kept.scratch[self]
        return self.forward(inputs.filled(parts), hidden)

    def _make_scratch(self, shared: BatchMemory, rows: int) -> tuple[NetInput, list[Tensor]]:
        """Returns memory for inputs and activations, two in turns."""
        first = self.layers[0]
        (block,) = shared.block("inputs", (1, rows, first.num_inputs), first.weight)
        return NetInput(block, first.num_nets), self._hidden_scratch(shared, rows)

    def _hidden_scratch(self, shared: BatchMemory, rows: int) -> list[Tensor]:
        shapes = [(layer.num_nets, rows, layer.num_outputs) for layer in self.layers[:-1]]
        return [shared.block(f"hidden {i % 2}", shape, self.layers[0].weight) for i, shape in enumerate(shapes)]

    def forward(self, inputs: NetInput, hidden: Sequence[Tensor]) -> Tensor:
        """Fills the activations `hidden`; returns the outputs. -> [C, B, O]."""
        below = inputs.below
        for layer, activations in zip(self.layers, hidden, strict=False):
            below = layer.products.forward(layer.bias, below, layer.weight_t, self.activation, activations)
        return self.layers[-1].outputs(below)

    def backward(
        self, d_output: Tensor, inputs: NetInput, memory: Memory, gradients: Sequence[LayerGradients] | None
    ) -> Tensor:
        """Fills the `gradients`, if any; returns that of the products of the first layer. [C, B, O] -> [C, B, H]."""
        above = d_output
        for i in range(len(self.layers) - 1, 0, -1):
            layer, below, gradient = self.layers[i], memory.hidden[i - 1], memory.gradients[i - 1]
            if gradients is not None:
                above_t = d_output.mT if above is d_output else memory.gradient_t(i)
                layer.products.to_weights(above_t, below, gradients[i].weight)
                torch.sum(above, dim=1, keepdim=True, out=gradients[i].bias)
            above = self.activation.differentiate(layer.products.to_inputs(above, layer.weight, gradient), below)
        if gradients is not None:
            fill_first(self.layers[0], gradients[0], above, inputs, memory)
        return above

    def input_gradient(self, above: Tensor, start: int, width: int) -> Tensor:
        """Returns the gradient [B, width] of the inputs from column `start` on, from that above the first product."""
        # In this order: for the product of both transposes MKL took 0.9 ms on an Intel Xeon, for this one 0.06 ms.
        by_network = torch.bmm(above, self.layers[0].weight[:, :, start : start + width])  # [C, B, width]
        return by_network[0] if self.layers[0].num_nets == 1 else by_network.sum(dim=0)


def fill_first(layer: Layer, gradients: LayerGradients, above: Tensor, inputs: NetInput, memory: Memory) -> None:
    """Fills the gradients of the first layer from that of its products, which is in the memory. [C, B, H]."""
    if memory.first_gradient is None:
        layer.products.to_weights(memory.gradient_t(0), inputs.below, gradients.weight)
    else:
        gradients.weight.copy_(torch.bmm(inputs.below_t, above, out=memory.first_gradient).mT)
    torch.sum(above, dim=1, keepdim=True, out=gradients.bias)


class _Fused(torch.autograd.Function):
    """A `FusedMlp` in a graph of autograd."""

    @staticmethod
    def forward(ctx: Any, net: FusedMlp, num_inputs: int, *tensors: Tensor) -> Tensor:  # Any: torch declares no type
        parts = tensors[:num_inputs]
        if not any(ctx.needs_input_grad):
            return net.infer(parts)
        memory = net.memory(parts[0].shape[0])
        inputs = memory.inputs.filled(parts)
        output = net.forward(inputs, memory.hidden)
        ctx.net, ctx.memory, ctx.widths = net, memory, [part.shape[1] for part in parts]
        # Saved, so that autograd sees when they are overwritten before the backward pass.
        ctx.save_for_backward(inputs.rows, *memory.hidden, *(layer.weight for layer in net.layers))
        return output

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the wrapper names no parameter
        ctx: Any,  # Any: torch declares no type
        *grad_outputs: Tensor,
    ) -> tuple[Tensor | None, ...]:
        (d_output,) = grad_outputs
        net: FusedMlp = ctx.net
        inputs = NetInput(ctx.saved_tensors[0], ctx.memory.inputs.num_nets)
        wanted = ctx.needs_input_grad[2:]
        by_input, by_parameter = wanted[: len(ctx.widths)], wanted[len(ctx.widths) :]
        # Fresh memory: autograd adds up the gradients of several passes, and may differentiate without stepping.
        fresh = [layer.fresh_gradients() for layer in net.layers] if any(by_parameter) else None
        above = net.backward(d_output, inputs, ctx.memory, fresh)
        starts = itertools.accumulate(ctx.widths, initial=0)
        by_inputs = [
            net.input_gradient(above, start, width) if is_wanted else None
            for start, width, is_wanted in zip(starts, ctx.widths, by_input, strict=False)
        ]
        by_parameters = [None] * len(by_parameter) if fresh is None else parameters_gradients(fresh)
        return (None, None, *by_inputs, *by_parameters)


def parameters_gradients(layers: Sequence[LayerGradients]) -> list[Tensor]:
    """Returns the gradients as `FusedMlp.parameters` are ordered: network by network."""
    num_nets = layers[0].weight.shape[0]
    return [part for i in range(num_nets) for layer in layers for part in (layer.weight[i], layer.bias[i, 0])]


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
    """True for linear layers with one activation of `FUSED_ACTIVATIONS` between each two: no layer norm, no SiLU."""
    kinds = [type(layer) for layer in net]
    return kinds[1] in FUSED_ACTIVATIONS and kinds == [nn.Linear, *(kinds[1], nn.Linear) * (len(kinds) // 2)]
