"""A stand-in for a CUDA graph: operations are written down and done again on the same tensors, without the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from offpolicy.algos.recorded import Recorder


class Tape(TorchDispatchMode):
    """Writes down operations. As in a graph, a number of the host stays what it was, and a tensor is read anew."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._operations.append((func, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        """Does the operations again; results go where they went before."""
        for func, args, kwargs, result in self._operations:
            again = func(*args, **kwargs)
            for old, new in zip(_tensors(result), _tensors(again), strict=True):
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)


def _tensors(result: Any) -> list[torch.Tensor]:
    parts = result if isinstance(result, tuple | list) else (result,)
    return [part for part in parts if isinstance(part, torch.Tensor)]


class TapeRecorder(Recorder):
    """A recorder for the CPU. Unlike CUDA's it does the work while it records."""

    def __init__(self) -> None:
        pass

    def warm_up(self, work: Callable[[], None]) -> None:
        work()

    def record(self, work: Callable[[], None], generator: torch.Generator) -> Callable[[], None]:
        with Tape() as tape:
            work()
        return tape.replay
