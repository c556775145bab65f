"""The one place that chooses which networks of a learner are evaluated by fused kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from offpolicy.nets.critics import TwinCritic
from offpolicy.nets.fused import FusedMlp, Workspace, can_fuse
from offpolicy.nets.mixed import MixedMlp, can_round
from offpolicy.nets.mlp import Mlp
from offpolicy.nets.plain import Differentiable, PlainMlp
from offpolicy.onednn import BLAS, chosen_library


def fuse(
    network: nn.Module,
    gradients: Mapping[Tensor, Tensor],
    *followers: nn.Module,
    precision: str = "fp32",
    products: str = BLAS,
) -> None:
    """Fuses the perceptrons in `network` that learn, and those in its targets, the `followers`, where they can be.

    A target is evaluated where its source keeps its activations: what the last pass of the source kept is gone then.
    `gradients` is the optimiser's memory for the gradient of each parameter that learns. Perceptrons with layer norm or
    an activation without a fused kernel keep their plain modules, and so do those that do not learn: results are the
    same either way, to float rounding. With `precision` bf16 perceptrons of two hidden layers or more round the factors
    of the products between them. `products` is `algo.products`: the library that makes those of float32 on a CPU.
    """
    workspace = Workspace(chosen_library(products))
    if precision == "bf16":  # cuBLAS adds up in float32 too, for the whole process
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    for module in network.modules():
        _fuse(module, gradients, workspace, precision)
    for follower in followers:
        for module, source in zip(follower.modules(), network.modules(), strict=True):
            _fuse(module, {}, workspace, precision, source)


def differentiable(nets: Sequence[Mlp], gradients: Mapping[Tensor, Tensor], fused: FusedMlp | None) -> Differentiable:
    """Returns `fused` if there is one, else a `PlainMlp` of the networks, which autograd differentiates."""
    return fused or PlainMlp(nets, gradients)


def graphless(*nets: Differentiable, is_replayed: bool) -> Callable[[], AbstractContextManager[object]]:
    """Returns the context in which an update evaluates and differentiates `nets`, without a graph of autograd.

    `inference_mode`, in which an operation costs the host an eighth less, where all of them are fused. Else `no_grad`:
    plain modules switch autograd on within it, and updates that may be recorded or compiled are made under it.
    """
    are_fused = all(isinstance(net, FusedMlp) for net in nets)
    return torch.inference_mode if are_fused and not is_replayed else torch.no_grad


def _fuse(
    module: nn.Module,
    gradients: Mapping[Tensor, Tensor],
    workspace: Workspace,
    precision: str,
    source: nn.Module | None = None,
) -> None:
    nets = (module.first, module.second) if isinstance(module, TwinCritic) else (module,)
    has_memory = not gradients or all(parameter in gradients for parameter in module.parameters())
    if isinstance(module, Mlp | TwinCritic) and has_memory:
        perceptrons = [net for net in nets if isinstance(net, Mlp)]
        if all(can_fuse(net) for net in perceptrons):
            is_mixed = precision == "bf16" and all(can_round(net) for net in perceptrons)
            module.fused = (MixedMlp if is_mixed else FusedMlp)(perceptrons, gradients, workspace)
            if isinstance(source, Mlp | TwinCritic):
                module.fused.source = source.fused
