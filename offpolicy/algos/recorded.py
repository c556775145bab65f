"""Updates that are not made kernel by kernel: recorded once on a CUDA device and replayed, or compiled.

An update (`ReplayLearner.update_once`) reads and writes tensors that never move: parameters, moments, step sizes and
sums of metrics in place, a batch, and random numbers of one generator. The host decides one thing, whether there is an
actor step: so there are two kinds of update at most. It counts what was measured after the update, outside of what is
recorded or compiled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from offpolicy.algos.learners import ReplayLearner
from offpolicy.types import Batch

GRAPH, REDUCE_OVERHEAD = "graph", "reduce-overhead"  # values of `algo.compile`
OLDEST_TORCH = "2.13"  # of older ones some cannot draw after a failed capture: "Offset increment outside graph capture"
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
        if torch.__version__ < OLDEST_TORCH:
            raise RuntimeError(f"after a failed capture torch {torch.__version__} cannot go on; {OLDEST_TORCH} can")
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
        before = torch.cuda.current_stream(self._device)
        # The graph holds the address of cuBLAS's workspace, which must lie in the graph's own pool: one made before
        # could be given up, by a compiled update for example (`torch._inductor.cudagraph_trees.clear_cublass_cache`).
        torch._C._cuda_clearCublasWorkspaces()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                work()
        finally:
            torch.cuda.set_stream(before)  # torch leaves it at its own after a capture that failed
            torch._C._cuda_clearCublasWorkspaces()  # nothing but the graph may use the new one
        return graph.replay


class ReplacedUpdate(ABC):
    """An `Update` for batches of the shapes of the first; those of other shapes are learnt from kernel by kernel.

    `report_other` is called with the first such batch.
    """

    def __init__(self, learner: ReplayLearner) -> None:
        self._learner = learner
        self.report_other: Callable[[Batch], None] | None = None
        self._kinds = sorted({learner.has_actor_step(number) for number in (1, learner.policy_delay)})
        self._shapes: list[torch.Size] = []  # of the batch that it is prepared for

    def prepare(self, batch: Batch) -> None:
        """Prepares updates on batches of the shapes of this one. The learner is changed: restore its state."""
        self._shapes = [tensor.shape for tensor in batch]
        self._prepare(batch)

    def __call__(self, batch: Batch, has_actor_step: bool) -> None:  # noqa: FBT001  # an `Update`
        """Makes one update."""
        if [tensor.shape for tensor in batch] == self._shapes:
            self._learner.count_metrics(self._run(batch, has_actor_step=has_actor_step))
            return
        self._learner.update_once(batch, has_actor_step)
        if self.report_other is not None:
            self.report_other(batch)
            self.report_other = None

    @abstractmethod
    def _prepare(self, batch: Batch) -> None:
        """See `prepare`."""

    @abstractmethod
    def _run(self, batch: Batch, *, has_actor_step: bool) -> tuple[str, ...]:
        """Makes one update but for its counts; returns the groups of metrics to be counted."""


class Recording(NamedTuple):
    """An update that was recorded."""

    replay: Callable[[], None]
    groups: tuple[str, ...]  # of metrics, that it measures
    memory: Collection[Tensor]  # what it reads and writes at its place, which must not be given up


class Inputs(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of __init_subclass__
    """Holds the tensors that operations read or write and that lie in memory from before: it must stay as it is."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self.held: dict[StorageWeakRef, list[Tensor]] = {}  # by memory
        self._made: set[StorageWeakRef] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: as of torch
        """Does the operation."""
        for tensor in _tensors((args, kwargs)):
            storage = _memory(tensor)
            if storage not in self._made:
                self.held.setdefault(storage, []).append(tensor)
        result = func(*args, **(kwargs or {}))
        made = (_memory(tensor) for tensor in _tensors(result))
        self._made.update(storage for storage in made if storage not in self.held)
        return result


def _memory(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # of torch


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class RecordedUpdate(ReplacedUpdate):
    """An `Update` that replays recordings, one of each kind."""

    def __init__(self, learner: ReplayLearner, recorder: Recorder) -> None:
        super().__init__(learner)
        self._recorder = recorder
        self._batch: Batch  # read by every replay
        self._recordings: dict[bool, Recording] = {}  # by whether the actor is updated

    def _prepare(self, batch: Batch) -> None:
        self._batch = Batch(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in batch))
        for kind in self._kinds:
            self._recordings[kind] = self._record(has_actor_step=kind)

    def _run(self, batch: Batch, *, has_actor_step: bool) -> tuple[str, ...]:
        for own, new in zip(self._batch, batch, strict=True):
            own.copy_(new)
        recording = self._recordings[has_actor_step]
        recording.replay()
        return recording.groups

    def _record(self, *, has_actor_step: bool) -> Recording:
        groups: list[str] = []
        inputs = Inputs()

        def work() -> None:
            groups[:] = self._learner.update_tensors(self._batch, has_actor_step=has_actor_step)

        def warm_up() -> None:
            for _ in range(WARM_UPDATES):
                work()
            with inputs:
                work()

        self._recorder.warm_up(warm_up)
        replay = self._recorder.record(work, self._learner.generator)
        return Recording(replay, tuple(groups), [tensors[0] for tensors in inputs.held.values()])


class CompiledUpdate(ReplacedUpdate):
    """An `Update` that torch.compile has made, with its mode reduce-overhead.

    Adam and the guard keep their own kernels, and random numbers are drawn between the compiled parts.
    """

    def __init__(self, learner: ReplayLearner) -> None:
        super().__init__(learner)
        for name in EAGER_OPERATIONS:
            torch._dynamo.disallow_in_graph(getattr(torch, name))
        self._compiled = torch.compile(learner.update_tensors, mode=REDUCE_OVERHEAD, dynamic=False)

    def _prepare(self, batch: Batch) -> None:
        """Compiles. Raises `RuntimeError`, as without a C++ compiler."""
        self._mark_kept_tensors(batch)
        for _ in range(WARM_UPDATES):
            for kind in self._kinds:
                self._run(batch, has_actor_step=kind)

    def _mark_kept_tensors(self, batch: Batch) -> None:
        """Has the compiler know that all but the batch never moves: it has no CUDA graph for what else is written."""
        of_batch = {_memory(tensor) for tensor in batch}
        for kind in self._kinds:
            self._learner.update_tensors(batch, has_actor_step=kind)  # makes what is kept
            with Inputs() as inputs:
                self._learner.update_tensors(batch, has_actor_step=kind)
            for storage, tensors in inputs.held.items():
                for tensor in tensors if storage not in of_batch else ():
                    torch._dynamo.mark_static_address(tensor)

    def _run(self, batch: Batch, *, has_actor_step: bool) -> tuple[str, ...]:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # of torch
        return self._compiled(batch, has_actor_step=has_actor_step)


def replaced_update(mode: str, learner: ReplayLearner, device: torch.device) -> ReplacedUpdate:
    """Returns an update by `GRAPH` or `REDUCE_OVERHEAD`, to be prepared.

    Raises `RuntimeError` where that is impossible: between ranks that average gradients within an update, and a graph
    without CUDA.
    """
    if learner.exchanges_gradients:
        raise RuntimeError("several ranks average their gradients within an update")
    return RecordedUpdate(learner, Recorder(device)) if mode == GRAPH else CompiledUpdate(learner)
