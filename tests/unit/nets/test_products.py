"""Products of layers by oneDNN against those by the BLAS."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from offpolicy.algos.registry import make_learner
from offpolicy.config.sections import AlgoConfig
from offpolicy.nets.activations import RELU
from offpolicy.nets.fused import FusedMlp, Workspace
from offpolicy.nets.mlp import mlp
from offpolicy.nets.products import CpuProducts, Linear, OneDnnProducts, Products, choose_products, products_of_layer
from offpolicy.onednn import BLAS, ONEDNN, has_onednn, is_product
from offpolicy.types import Batch, Batches, SpaceSpec

pytestmark = pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN")

SPEC = SpaceSpec(obs_dim=150, action_dim=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
ROWS, INPUTS, OUTPUTS = 48, 160, 128
FLASHSAC: dict[str, Any] = {"name": "flashsac", "policy_delay": 2, "init_alpha": 0.01}

counts = pytest.mark.parametrize("num_nets", [1, 2, 3])


class Linears(TorchDispatchMode):
    """Notes the factors of oneDNN's products."""

    def __init__(self) -> None:
        super().__init__()
        self.factors: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_product(func.overloadpacket):
            self.factors.append(args[:2])
        return func(*args, **(kwargs or {}))


def operands(num_nets: int) -> dict[str, Tensor]:
    """Bias, inputs, gradients of the products and weights of layers, each inside of a wider block."""
    generator = torch.Generator().manual_seed(num_nets)

    def block(rows: int, columns: int) -> Tensor:
        return torch.randn(num_nets, rows, columns + 3, generator=generator)[:, :, 1 : columns + 1]

    weight = block(OUTPUTS, INPUTS).contiguous()
    return {"bias": block(1, OUTPUTS), "below": block(ROWS, INPUTS), "above": block(ROWS, OUTPUTS), "weight": weight}


def all_three(products: Products, of: dict[str, Tensor]) -> list[Tensor]:
    num_nets = len(of["weight"])
    shapes = [(num_nets, ROWS, OUTPUTS), (num_nets, ROWS, INPUTS), (num_nets, OUTPUTS, INPUTS)]
    forward, to_inputs, to_weights = (torch.full(shape, float("nan")) for shape in shapes)
    results = [
        products.forward(of["bias"], of["below"], of["weight"].mT, RELU, forward),
        products.to_inputs(of["above"], of["weight"], to_inputs),
        products.to_weights(of["above"].mT, of["below"], to_weights),
    ]
    assert results[0] is forward
    assert results[1] is to_inputs
    assert results[2] is to_weights
    return results


@counts
@pytest.mark.parametrize("products", [OneDnnProducts(), CpuProducts()], ids=lambda products: type(products).__name__)
def test_all_make_the_same_products(num_nets: int, products: Products) -> None:
    of = operands(num_nets)
    for ours, theirs in zip(all_three(products, of), all_three(Products(), of), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-4)


@counts
def test_no_factor_on_the_right_has_gaps_between_its_rows(num_nets: int) -> None:
    """It would be multiplied element by element."""
    with Linears() as linears:
        all_three(OneDnnProducts(), operands(num_nets))
    assert len(linears.factors) == 3 * num_nets
    assert all(right.is_contiguous() or right.t().is_contiguous() for _, right in linears.factors)


def test_what_is_compiled_has_the_products_of_the_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with Linears() as linears:
        results = all_three(OneDnnProducts(), operands(2))
    assert not linears.factors
    assert all(map(torch.equal, results, all_three(CpuProducts(), operands(2))))


@pytest.mark.parametrize(
    ("library", "shape", "dtype", "expected"),
    [
        (ONEDNN, (2, 128, 128), torch.float32, OneDnnProducts),
        (ONEDNN, (1, 64, 256), torch.float32, OneDnnProducts),
        (ONEDNN, (2, 256, 23), torch.float32, CpuProducts),  # a narrow one is as fast in one call
        (ONEDNN, (2, 256, 256), torch.float64, CpuProducts),
        (BLAS, (2, 256, 256), torch.float32, CpuProducts),
    ],
)
def test_wide_layers_of_float32_are_multiplied_by_the_chosen_library(
    library: str, shape: tuple[int, ...], dtype: torch.dtype, expected: type[Products]
) -> None:
    assert type(products_of_layer(library, torch.empty(shape, dtype=dtype))) is expected
    assert type(products_of_layer(library, torch.empty(shape, dtype=dtype, device="meta"))) is Products


@counts
def test_fused_networks_are_differentiated_as_by_autograd(num_nets: int) -> None:
    nets = [mlp(150, (160, 128), 2, "relu") for _ in range(num_nets)]
    by_layer = [p for layer in zip(*(net.parameters() for net in nets), strict=True) for p in layer]
    block = torch.cat([p.detach().flatten() for p in by_layer])
    pieces = list(block.split([p.numel() for p in by_layer]))
    for parameter, piece in zip(by_layer, pieces, strict=True):
        parameter.data = piece.view(parameter.shape)
    memory = torch.full_like(block, float("nan")).split([p.numel() for p in by_layer])
    gradients = {p: piece.view(p.shape) for p, piece in zip(by_layer, memory, strict=True)}
    net = FusedMlp(nets, gradients, Workspace(ONEDNN))
    rows = torch.randn(ROWS, 150)
    plain = torch.stack([module(rows) for module in nets])
    slope = torch.randn_like(plain)
    expected = torch.autograd.grad(plain, net.parameters, slope)
    with Linears() as linears, torch.no_grad():
        assert torch.allclose(net.evaluate(rows), plain, rtol=1e-5, atol=1e-5)
        net.pull_back(slope)
    assert [type(layer.products) for layer in net.layers] == [OneDnnProducts, OneDnnProducts, CpuProducts]
    assert len(linears.factors) == 5 * num_nets  # two layers forward and their weights, one for its inputs
    for parameter, theirs in zip(net.parameters, expected, strict=True):
        assert torch.allclose(gradients[parameter], theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("needed", [(True, True), (True, False), (False, True)])
def test_a_layer_by_onednn_is_differentiated_as_torchs(needed: tuple[bool, bool], has_bias: bool) -> None:
    """Only what is asked for is computed: the forward product and each gradient are one."""
    layer = Linear(160, 128, bias=has_bias).requires_grad_(needed[1])
    rows = torch.randn(ROWS, 160, requires_grad=needed[0])
    of = [tensor for tensor in (rows, *layer.parameters()) if tensor.requires_grad]
    slope = torch.randn(ROWS, 128)
    expected = layer(rows)
    gradients = torch.autograd.grad(expected, of, slope)
    choose_products(ONEDNN, layer)
    with Linears() as linears:
        output = layer(rows)
        ours = torch.autograd.grad(output, of, slope)
    assert len(linears.factors) == 1 + sum(needed)
    assert torch.allclose(output, expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(ours, gradients, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_a_gradient_without_memory_of_its_own_is_multiplied_too() -> None:
    layer = Linear(160, 128, bias=False)
    choose_products(ONEDNN, layer)
    rows = torch.randn(ROWS, 160)
    (ours,) = torch.autograd.grad(layer(rows).sum(), layer.weight)  # of a sum, one number for all
    assert torch.allclose(ours, rows.sum(dim=0).expand(128, -1), rtol=1e-4, atol=1e-4)


def test_only_wide_layers_are_chosen_and_none_by_the_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [Linear(128, 128), Linear(127, 128), Linear(128, 128, dtype=torch.float64)]
    choose_products(ONEDNN, *layers)
    assert [layer.is_onednn for layer in layers] == [True, False, False]
    with monkeypatch.context() as patch, Linears() as linears:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        layers[0](torch.randn(ROWS, 128))
    assert not linears.factors
    choose_products(BLAS, *layers)
    assert not any(layer.is_onednn for layer in layers)


@pytest.mark.parametrize(
    "options",
    [{"name": "sac"}, {"name": "td3", "activation": "tanh"}, {"name": "sac", "precision": "bf16"}, FLASHSAC],
    ids=str,
)
def test_learners_learn_the_same_with_both(options: dict[str, Any]) -> None:
    """Over ten updates; Adam makes a step of full length of a gradient that is a rounding error."""
    sizes = {} if options["name"] == "flashsac" else {"hidden_dims": (160, 128)}
    learners = [
        make_learner(AlgoConfig(**options, **sizes, products=library), SPEC, torch.device("cpu"), seed=3)
        for library in (ONEDNN, BLAS)
    ]
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        obs, action, reward, next_obs = (torch.randn((32, n), generator=generator) for n in (150, 2, 1, 150))
        batch = Batch(obs, action.tanh(), reward[:, 0], next_obs, torch.zeros(32), torch.full((32,), 0.99))
        for learner in learners:
            learner.update(Batches((batch,), None))
    left, right = (learner.state().tensors for learner in learners)
    for name in left.keys() - {"generator"}:
        assert torch.allclose(left[name], right[name], rtol=1e-3, atol=1e-3), name
