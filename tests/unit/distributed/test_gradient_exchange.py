from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from offpolicy.distributed.gradient_exchange import checksum

DTYPES = (torch.float32, torch.float64)


def tensors_of(dtype: torch.dtype) -> list[Tensor]:
    """As a learner has them: a matrix, a vector and a number."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in ((5, 7), (7,), ())]


def words_of(tensor: Tensor) -> Tensor:
    """A view of the tensor's bits, 32 at a time."""
    return tensor.reshape(-1).view(torch.int32)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_the_checksum_changes_with_any_bit_of_any_tensor(dtype: torch.dtype, data: st.DataObject) -> None:
    tensors = tensors_of(dtype)
    before = checksum(tensors)
    words = words_of(data.draw(st.sampled_from(tensors)))
    word, bit = data.draw(st.integers(0, len(words) - 1)), data.draw(st.integers(0, 31))
    words[word] ^= 1 << bit if bit < 31 else -(1 << 31)
    assert checksum(tensors) != before


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_the_checksum_changes_with_any_swap_of_two_elements(dtype: torch.dtype, data: st.DataObject) -> None:
    tensors = tensors_of(dtype)
    before = checksum(tensors)
    flat = tensors[0].reshape(-1)
    first, second = data.draw(st.lists(st.integers(0, len(flat) - 1), min_size=2, max_size=2, unique=True))
    flat[[first, second]] = flat[[second, first]]
    assert checksum(tensors) != before


def test_the_checksum_changes_when_two_tensors_are_swapped() -> None:
    first, second, number = tensors_of(torch.float32)
    other = second + 1.0
    assert checksum([first, second, other, number]) != checksum([first, other, second, number])
    assert checksum([number, number + 1.0]) != checksum([number + 1.0, number])


def test_the_checksum_of_copies_and_of_other_strides_is_the_same() -> None:
    tensors = tensors_of(torch.float32)
    twisted = [tensors[0].t().contiguous().t(), tensors[1].clone().requires_grad_(), tensors[2].clone()]
    assert not twisted[0].is_contiguous()
    assert checksum(twisted) == checksum(tensors)


@given(seed=st.integers(0, 2**32))
def test_the_checksum_is_a_whole_number_below_2_to_the_48(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    value = checksum([torch.randn(9, generator=generator), torch.randn((), generator=generator, dtype=torch.float64)])
    assert isinstance(value, float)
    assert value.is_integer()
    assert 0 <= value < 2**48


def test_the_checksum_leaves_its_tensors_as_they_are() -> None:
    tensors = tensors_of(torch.float32)
    checksum(tensors)
    for tensor, expected in zip(tensors, tensors_of(torch.float32), strict=True):
        assert torch.equal(tensor, expected)
