"""Updates by other means than kernel after kernel: recorded once on a CUDA device and replayed, or compiled.

An update (`ReplayLearner.update_once`) reads and writes tensors that never move: parameters, moments, step sizes and
metrics in place, a batch, and random numbers of one generator. What the host decides is the same in all updates of one
turn of `policy_delay`: with an actor step or without. So there is one recording per turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from offpolicy.algos.learners import ReplayLearner, Update
from offpolicy.types import Batch

GRAPH, REDUCE_OVERHEAD = "graph", "reduce-overhead"  # values of `algo.compile`
WARM_UPDATES = 3  # updates before a recording, which find their memory and load their kernels
EAGER_OPERATIONS = (  # which torch.compile would take apart, or fails to
    "_fused_adam_",
    "_amp_foreach_non_finite_check_and_unscale_",
)


class Recorder:
    """Records kernels as a CUDA graph, which replays them with one launch."""

    def __init__(self, device: torch.device) -> None:
        """Raises `RuntimeError` for a device that cannot record."""
        if device.type != "cuda":
            raise RuntimeError(f"kernels are captured on CUDA only, and the device is {device}")
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()  # of all graphs: they never run at the same time
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # of torch

    def warm_up(self, work: Callable[[], None]) -> None:
        """Calls `work` on the stream of the recording: what is loaded or allocated once must not be recorded."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            work()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def record(self, work: Callable[[], None], generator: torch.Generator) -> Callable[[], None]:
        """Records what `work` launches, without its being done; returns what does it, as often as it is called.

        The generator is registered: each replay draws the numbers that the launched kernels would draw next. Other
        threads may use the device meanwhile, as the one that packs batches does.
        """
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph.replay


class Recording(NamedTuple):
    """An update that was recorded."""

    replay: Callable[[], None]
    counted: Mapping[str, int]  # additions to the host's counts of metrics


class RecordedUpdate:
    """An `Update` that replays recordings, one for each turn of `policy_delay`."""

    def __init__(self, learner: ReplayLearner, policy_delay: int, recorder: Recorder) -> None:
        self._learner, self._policy_delay, self._recorder = learner, policy_delay, recorder
        self._batch: Batch | None = None  # read by every replay
        self._recordings: dict[bool, Recording] = {}  # by whether the actor is updated

    def prepare(self, batch: Batch) -> None:
        """Records the updates for batches of the shapes of this one. The learner is changed: restore its state."""
        self._batch = Batch(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in batch))
        for num_updates in {1, self._policy_delay}:
            self._recorder.warm_up(lambda number=num_updates: self._repeat(number))  # type: ignore[misc]
            self._recordings[self._has_actor_step(num_updates)] = self._record(num_updates)

    def __call__(self, batch: Batch, num_updates: int) -> None:
        """Makes update number `num_updates`; kernel by kernel for a batch of other shapes."""
        if self._batch is None or any(own.shape != new.shape for own, new in zip(self._batch, batch, strict=True)):
            self._learner.update_once(batch, num_updates)
            return
        for own, new in zip(self._batch, batch, strict=True):
            own.copy_(new)
        recording = self._recordings[self._has_actor_step(num_updates)]
        recording.replay()
        for group, count in recording.counted.items():
            self._learner.update_counts[group] += count

    def _has_actor_step(self, num_updates: int) -> bool:
        return num_updates % self._policy_delay == 0

    def _repeat(self, num_updates: int) -> None:
        assert self._batch is not None  # set by `prepare`
        for _ in range(WARM_UPDATES):
            self._learner.update_once(self._batch, num_updates)

    def _record(self, num_updates: int) -> Recording:
        batch, counts = self._batch, self._learner.update_counts
        assert batch is not None  # set by `prepare`
        before = dict(counts)
        replay = self._recorder.record(lambda: self._learner.update_once(batch, num_updates), self._learner.generator)
        return Recording(replay, {group: counts[group] - before[group] for group in counts})


class CompiledUpdate:
    """An `Update` that torch.compile has made, with its mode reduce-overhead: CUDA graphs where there is CUDA.

    Adam and the guard keep their own kernels, and random numbers are drawn between the compiled parts.
    """

    def __init__(self, learner: ReplayLearner, policy_delay: int) -> None:
        self._policy_delay = policy_delay
        for name in EAGER_OPERATIONS:
            torch._dynamo.disallow_in_graph(getattr(torch, name))
        self._update: Update = torch.compile(learner.update_once, mode=REDUCE_OVERHEAD, dynamic=False)

    def prepare(self, batch: Batch) -> None:
        """Compiles. The learner is changed: restore its state. Raises `RuntimeError`, as without a C++ compiler."""
        for _ in range(WARM_UPDATES):
            for num_updates in {1, self._policy_delay}:
                self(batch, num_updates)

    def __call__(self, batch: Batch, num_updates: int) -> None:
        """Makes update number `num_updates`, which the compiler sees as the first with or without an actor step."""
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # of torch
        self._update(batch, self._policy_delay if num_updates % self._policy_delay == 0 else 1)


ReplacedUpdate = RecordedUpdate | CompiledUpdate


def replaced_update(mode: str, learner: ReplayLearner, policy_delay: int, device: torch.device) -> ReplacedUpdate:
    """Returns an update by `GRAPH` or `REDUCE_OVERHEAD`, to be prepared.

    Raises `RuntimeError` where that is impossible: between ranks that average gradients within an update, and a graph
    without CUDA.
    """
    if learner.exchanges_gradients:
        raise RuntimeError("several ranks average their gradients within an update")
    if mode == GRAPH:
        return RecordedUpdate(learner, policy_delay, Recorder(device))
    return CompiledUpdate(learner, policy_delay)


def copied(batch: Batch) -> Batch:
    """Returns a copy in memory of its own."""
    return Batch(*(tensor.clone() for tensor in batch))
