"""HORA's observation groups and how many frames of history it needs: known without torch, for refusals."""

from __future__ import annotations

from itertools import accumulate

OBS, PRIVILEGED, HISTORY = "obs", "privileged", "proprio_hist"  # the groups, by their keys in a Dict observation
CHANNELS = 32
CONVOLUTIONS = ((9, 2), (5, 1), (5, 1))  # kernel and stride over time, HORA (arXiv:2210.04887), section 3.2


def lengths(num_frames: int) -> list[int]:
    """Frames before each convolution and after the last: 30, 11, 7, 3."""
    return list(accumulate(CONVOLUTIONS, lambda length, layer: (length - layer[0]) // layer[1] + 1, initial=num_frames))


def num_unread(num_frames: int) -> int:
    """The oldest frames, which the first convolution's stride leaves out: 1 of 30."""
    kernel, stride = CONVOLUTIONS[0]
    return (num_frames - kernel) % stride


def is_long_enough(num_frames: int) -> bool:
    """True if a frame is left after the last convolution."""
    return all(length >= kernel for length, (kernel, _) in zip(lengths(num_frames), CONVOLUTIONS, strict=False))


MIN_FRAMES = next(n for n in range(1, 1000) if is_long_enough(n))
