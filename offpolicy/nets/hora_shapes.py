"""HORA's observation groups and the sizes of its networks: known without torch, for refusals and for shared memory."""

from __future__ import annotations

from itertools import accumulate, pairwise

OBS, PRIVILEGED, HISTORY = "obs", "privileged", "proprio_hist"  # the groups, by their keys in a Dict observation
CHANNELS = 32
CONVOLUTIONS = ((9, 2), (5, 1), (5, 1))  # kernel and stride over time, HORA (arXiv:2210.04887), section 3.2


def lengths(num_frames: int) -> list[int]:
    """Frames before each convolution and after the last: 30, 11, 7, 3."""
    return list(accumulate(CONVOLUTIONS, _after, initial=num_frames))


def _after(length: int, convolution: tuple[int, int]) -> int:
    kernel, stride = convolution
    return (length - kernel) // stride + 1


def num_unread(num_frames: int) -> int:
    """The oldest frames, which the first convolution's stride leaves out: 1 of 30."""
    kernel, stride = CONVOLUTIONS[0]
    return (num_frames - kernel) % stride


def is_long_enough(num_frames: int) -> bool:
    """Whether anything is left after the last convolution."""
    return all(length >= kernel for length, (kernel, _) in zip(lengths(num_frames), CONVOLUTIONS, strict=False))


MIN_FRAMES = next(n for n in range(1, 1000) if is_long_enough(n))


def mlp_parameters(*widths: int) -> int:
    """Of linear layers between layers of these widths."""
    return sum((before + 1) * after for before, after in pairwise(widths))


def adaptation_parameters(num_frames: int, frame_dim: int, latent_dim: int) -> int:
    """Of the adaptation module: two layers per frame, the convolutions, the head."""
    per_frame = mlp_parameters(frame_dim, CHANNELS, CHANNELS)
    convolutions = sum((CHANNELS * kernel + 1) * CHANNELS for kernel, _ in CONVOLUTIONS)
    return per_frame + convolutions + (CHANNELS * lengths(num_frames)[-1] + 1) * latent_dim
