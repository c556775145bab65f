"""Updates captured as CUDA graphs: one launch instead of some hundred (`algo.compile=graph`).

An update (`Learner.update_tensors`) reads and writes tensors that never move: parameters, moments, step sizes and sums
of metrics in place, a batch, and random numbers of one generator. The host decides one thing, whether there is an actor
step: so there are two graphs at most. What was measured is counted outside of them.
"""

from __future__ import annotations

from typing import Any

import torch

from offpolicy.algos.learner import Learner
from offpolicy.errors import ConfigError
from offpolicy.types import Batch

WARM_UPDATES = 3  # updates before a capture, which find their memory and load their kernels
Captured = tuple[torch.cuda.CUDAGraph, tuple[str, ...]]  # an update, and the groups of metrics that it measures


class GraphUpdate:
    """An `Update` that captures graphs in its first call, for batches of that shape, and then launches them."""

    def __init__(self, learner: Learner, device: torch.device) -> None:
        self._learner, self._device = learner, device
        self._batch: Batch  # which the graphs read
        self._captured: dict[bool, Captured] = {}  # by whether the actor is updated

    def __call__(self, batch: Batch, has_actor_step: bool) -> None:  # noqa: FBT001  # an `Update`
        """Makes one update. Raises `ConfigError` if the first one cannot be captured."""
        if not self._captured:
            self._capture_all(batch)
        for own, new in zip(self._batch, batch, strict=True):
            own.copy_(new)
        graph, groups = self._captured[has_actor_step]
        graph.replay()
        self._learner.rule.metrics.count(groups)

    def _capture_all(self, batch: Batch) -> None:
        """Captures the updates with and without an actor step; leaves the learner as it was."""
        self._batch = Batch(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in batch))
        start, pool = self._learner.state(), torch.cuda.graph_pool_handle()
        kinds = {self._learner.has_actor_step(number) for number in (1, self._learner.policy_delay)}
        try:
            self._captured = {kind: self._capture(pool, has_actor_step=kind) for kind in kinds}
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"algo.compile: got graph, but the capture failed: {reason}; allowed here: off"
            ) from error
        self._learner.load_state(start)

    def _capture(self, pool: Any, *, has_actor_step: bool) -> Captured:  # Any: torch names no type
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # of torch
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):  # what is loaded or allocated once must not be captured
            for _ in range(WARM_UPDATES):
                self._learner.update_tensors(self._batch, has_actor_step=has_actor_step)
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._learner.generator)  # each launch draws the numbers that come next
        # Another thread may use the device meanwhile, as the one that packs batches does.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            groups = self._learner.update_tensors(self._batch, has_actor_step=has_actor_step)
        return graph, groups
