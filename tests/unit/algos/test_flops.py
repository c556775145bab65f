"""The work that torch counts in a learner's updates is that of pencil and paper."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from offpolicy.config.schema import RunConfig
from offpolicy.onednn import has_onednn
from offpolicy.training.flops import Work, count_work
from offpolicy.types import SpaceSpec

CPU = torch.device("cpu")
SPEC = SpaceSpec(3, 2, (-1.0,) * 2, (1.0,) * 2)
ROWS, WIDTH = 32, 5


def work_of(name: str, spec: SpaceSpec = SPEC, **algo: Any) -> Work:
    """Of one hidden layer of WIDTH, batches of ROWS, and 8 steps of 4 environments."""
    options = {"hidden_dims": [WIDTH], **algo, "name": name}
    others = {"runner": {"name": "appo"}, "rollout": {"length": 8}} if name == "appo" else {}
    if name != "appo":
        options["batch_size"] = ROWS
    return count_work(RunConfig.from_mapping({"algo": options, "env": {"num_envs": 4}, **others}), spec, CPU)


def forward(inputs: int, outputs: int) -> int:
    """Operations of a perceptron per row: two for each weight."""
    return 2 * (inputs * WIDTH + WIDTH * outputs)


def gradients(inputs: int, outputs: int) -> int:
    """Of its weights, and of its hidden layer."""
    return forward(inputs, outputs) + 2 * WIDTH * outputs


@pytest.mark.parametrize(("kernels", "columns"), [("fast", 2), ("textbook", 5)])
def test_updates_of_sac_and_td3_are_counted(kernels: str, columns: int) -> None:
    """The gradient of a value by the action alone, or as autograd computes it, by the observation beside it too."""
    critics, sac_actor, td3_actor = (5, 1), (3, 4), (3, 2)
    learning = 2 * forward(*critics) + 2 * forward(*critics) + 2 * gradients(*critics)  # targets, values
    for name, actor, through in (("sac", sac_actor, 2), ("td3", td3_actor, 1)):
        acting = forward(*actor) + gradients(*actor) + through * (forward(*critics) + forward(columns, 1))
        work = work_of(name, policy_delay=2, kernels=kernels)
        assert work.update == ROWS * (forward(*actor) + learning + acting / 2), name
        assert work.decision == forward(*actor)
        assert sum(product.flops * product.per_update for product in work.products) == pytest.approx(work.update)


def test_epochs_of_appo_are_counted() -> None:
    """Values and policy once per batch of rollouts, of T + 1 and of T observations; then 3 epochs in 4 parts."""
    once = 4 * 9 * forward(3, 1) + 4 * 8 * forward(3, 2)
    epoch = 4 * 8 * (forward(3, 2) + gradients(3, 2) + forward(3, 1) + gradients(3, 1))
    work = work_of("appo", epochs=3, num_minibatches=4)
    assert work.update == pytest.approx((once + 3 * epoch) / 12)
    assert work.decision == forward(3, 2)


@pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN for float32")
def test_products_of_onednn_are_counted_as_those_of_the_blas() -> None:
    works = {name: work_of("sac", hidden_dims=[128, 128], products=name) for name in ("blas", "onednn")}
    assert works["blas"].update == works["onednn"].update
    assert {product.is_onednn for product in works["blas"].products} == {False}
    inner = {(p.rows, p.inner, p.columns) for p in works["onednn"].products if p.is_onednn}
    assert inner == {(ROWS, 128, 128), (2 * ROWS, 128, 128), (128, ROWS, 128)}


@pytest.mark.parametrize("name", ["sac", "appo"])
def test_counting_draws_no_random_number(name: str) -> None:
    before = torch.get_rng_state()
    work_of(name)
    assert torch.equal(before, torch.get_rng_state())
