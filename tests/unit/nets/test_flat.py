from __future__ import annotations

import torch
from torch import nn

from offpolicy.nets.flat import join, joined, offsets, views

SHAPES = [torch.Size([2, 3]), torch.Size([]), torch.Size([5])]


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def test_every_tensor_begins_at_16_bytes_and_the_last_ends_the_block() -> None:
    assert offsets(SHAPES) == [0, 8, 12, 17]


def test_views_share_the_memory_of_the_block() -> None:
    block = torch.zeros(17)
    matrix, scalar, vector = views(block, SHAPES)
    matrix[1, 2], vector[4] = 1.0, 2.0
    scalar.fill_(3.0)
    assert [i for i, value in enumerate(block.tolist()) if value] == [5, 8, 16]


def test_joining_keeps_values_names_and_gradients() -> None:
    ours = parameters()
    before = [parameter.detach().clone() for parameter in ours]
    block = join(ours)
    assert all(torch.equal(old, new.detach()) for old, new in zip(before, ours, strict=True))
    block.mul_(2.0)
    assert all(torch.equal(2.0 * old, new.detach()) for old, new in zip(before, ours, strict=True))
    assert all(parameter.requires_grad for parameter in ours)
    assert not block.requires_grad


def test_gaps_hold_zeros() -> None:
    block = join(parameters())
    assert block[[6, 7, 9, 10, 11]].tolist() == [0.0] * 5


def test_what_is_joined_stays_where_it_is() -> None:
    ours = parameters()
    block = join(ours)
    assert join(ours).data_ptr() == block.data_ptr()
    part = joined(ours[1:])
    assert part is not None
    assert part.data_ptr() == ours[1].data_ptr()
    assert len(part) == 9


def test_another_order_or_a_gap_is_not_joined() -> None:
    ours = parameters()
    assert joined(ours) is None
    join(ours)
    assert joined(ours[::-1]) is None
    assert joined(ours[::2]) is None
