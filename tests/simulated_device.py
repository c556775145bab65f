"""A CUDA device that exists only in a test: streams are queues that run beside the host, on a simulated clock.

`SimulatedDevice.installed()` puts it in the place of `torch.cuda`, so that the code under test is the one that a card
runs. Tensors made on `CUDA` lie in host memory, but their content appears only when the queued operation has run:

- Host time passes in `advance`, by `launch_ns` at each call that queues something, and in waits; nothing else takes
  time. A stream runs its operations in order, beside the others.
- An operation reads and writes when it ends. From its start until then its output is poisoned, and an input that
  changes meanwhile is a race. A copy from page-locked memory reads it when it runs: a block that the host has changed
  since the copy was issued is a race as well. `check()` raises what was found.
- `elapsed_time` of events that were not reached raises, as CUDA does.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
FRESH = {"aten::copy_", "aten::fill_", "aten::zero_"}  # in-place operations that do not read their target
UNINITIALISED = (torch.empty, torch.empty_like)
MS = 1_000_000


class Ran(NamedTuple):
    """When an operation ran."""

    name: str
    stream: str
    start_ns: int
    stop_ns: int


class SimulatedStream:
    """A queue of operations, known by when its last one ends; stands in for `torch.cuda.Stream`."""

    def __init__(self, device: SimulatedDevice, name: str) -> None:
        self.device, self.name, self.free_ns = device, name, 0

    def record_event(self, event: SimulatedEvent | None = None) -> SimulatedEvent:
        event = event or SimulatedEvent(self.device)
        event.record(self)
        return event

    def wait_event(self, event: SimulatedEvent) -> None:
        self.device.advance(self.device.launch_ns)
        self.free_ns = max(self.free_ns, event.reached_ns or 0)  # one that was never recorded is waited for by none

    def synchronize(self) -> None:
        self.device.calls["synchronize"] += 1
        self.device.wait_until(self.free_ns)


class SimulatedEvent:
    """Stands in for `torch.cuda.Event`, with its rules."""

    def __init__(self, device: SimulatedDevice, *, enable_timing: bool = False, blocking: bool = False) -> None:
        self._device, self._has_time, self._is_blocking = device, enable_timing, blocking
        self.reached_ns: int | None = None

    def record(self, stream: SimulatedStream | None = None) -> None:
        self._device.calls["record"] += 1
        self._device.advance(self._device.launch_ns)
        self.reached_ns = max((stream or self._device.current_stream()).free_ns, self._device.now_ns())

    def query(self) -> bool:
        self._device.advance(0)
        return (self.reached_ns or 0) <= self._device.now_ns()

    def synchronize(self) -> None:
        self._device.calls["blocking event" if self._is_blocking else "event"] += 1
        self._device.wait_until(self.reached_ns or 0)

    def elapsed_time(self, end_event: SimulatedEvent) -> float:
        if not (self._has_time and end_event._has_time):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self.reached_ns is None or end_event.reached_ns is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (end_event.reached_ns - self.reached_ns) / MS


class SimulatedDevice:
    """The device, the clock of its host, and the part of `torch.cuda` that the library uses.

    `launch_ns` passes on the host at each call that queues something; a kernel takes `kernel_ns`, a copy between host
    and device `copy_ns`.
    """

    def __init__(self, *, launch_ns: int = 0, kernel_ns: int = 2_000, copy_ns: int = 10_000) -> None:
        self.launch_ns, self.kernel_ns, self.copy_ns = launch_ns, kernel_ns, copy_ns
        self.calls = Counter[str]()
        self.log: list[Ran] = []  # in the order of their ends
        self.default = SimulatedStream(self, "default")
        self._streams = [self.default]
        self._now_ns = 0
        self._lock = threading.RLock()
        self._thread = threading.local()
        self._due: list[tuple[int, int, int, Callable[[], None]]] = []  # starts and ends to come, in their order
        self._num_queued = 0
        self._memory: dict[int, Tensor] = {}  # of the device, by address
        self._pinned: dict[int, Tensor] = {}  # page-locked memory of the host
        self._problems: list[str] = []

    # The host's clock.

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, ns: int) -> None:
        """Lets time pass on the host; the device works meanwhile."""
        with self._lock:
            until_ns = self._now_ns + ns
            while self._due and self._due[0][0] <= until_ns:
                self._now_ns, _, _, run = heapq.heappop(self._due)
                run()
            self._now_ns = until_ns

    def wait_until(self, instant_ns: int) -> None:
        """Waits, on the host."""
        with self._lock:
            self.advance(max(0, instant_ns - self._now_ns))
        self.check()

    def check(self) -> None:
        """Raises the races, and the errors of operations, that were found so far."""
        assert not self._problems, "; ".join(dict.fromkeys(self._problems))

    # Streams and operations.

    def new_stream(self, device: object = None) -> SimulatedStream:
        self._streams.append(SimulatedStream(self, f"copies {len(self._streams)}"))
        return self._streams[-1]

    def current_stream(self, device: object = None) -> SimulatedStream:
        stream: SimulatedStream = getattr(self._thread, "stream", self.default)
        return stream

    @contextmanager
    def stream(self, stream: SimulatedStream) -> Iterator[None]:
        before, self._thread.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self._thread.stream = before

    def work(self, ns: int, reads: Sequence[Tensor] = (), then: Callable[..., object] = lambda *contents: None) -> None:
        """Queues a kernel of that length on the current stream; `then` gets what it has read."""
        contents = [plain(tensor) for tensor in reads]
        self.queue("kernel", ns, contents, (), lambda: then(*contents))

    def queue(
        self, name: str, ns: int, reads: Sequence[Tensor], poisons: Sequence[Tensor], run: Callable[[], object]
    ) -> None:
        """Queues an operation that replaces the content of `poisons`."""
        held = {number: tensor.clone() for number, tensor in enumerate(reads) if not self.owns(tensor)}

        def begin() -> None:
            held.update({number: tensor.clone() for number, tensor in enumerate(reads) if number not in held})
            for tensor in poisons:
                poison(tensor)

        def end() -> None:
            self.log.append(Ran(name, stream.name, start_ns, stop_ns))
            if not all(same_bits(tensor, held[number]) for number, tensor in enumerate(reads)):
                self._problems.append(f"race: what {name} reads was changed before it had read it")
            try:
                run()
            except (IndexError, RuntimeError, AssertionError) as error:  # a wrong index, or a wrong content
                self._problems.append(f"{name}: {error}")

        with self._lock:
            self.advance(self.launch_ns)
            stream, self._num_queued = self.current_stream(), self._num_queued + 1
            start_ns = max(stream.free_ns, self._now_ns)
            stream.free_ns = stop_ns = start_ns + ns
            # Ends come before starts of the same instant.
            heapq.heappush(self._due, (start_ns, 1, self._num_queued, begin))
            heapq.heappush(self._due, (stop_ns, 0 if ns else 2, self._num_queued, end))

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> DeviceTensor:
        """Queues an operation with a result."""
        reads = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        result = self.allocated(empty_result(func, args, kwargs))
        name = func._schema.name
        self.queue(name, self.kernel_ns, reads, [result.plain], lambda: result.plain.copy_(func(*args, **kwargs)))
        return result

    def run_in_place(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Queues an operation that changes its first argument. Waits for a copy that needs the host to wait."""
        target, *others = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        assert "out" not in kwargs, func
        on_host = [tensor for tensor in (target, *others) if tensor.numel() and tensor.dim() and not self.owns(tensor)]
        reads, poisons = (others, [target]) if func._schema.name in FRESH else ([target, *others], [])
        ns = self.copy_ns if on_host else self.kernel_ns
        self.queue(func._schema.name, ns, reads, poisons, lambda: func(*args, **kwargs))
        is_asynchronous = args[2:3] == (True,) or kwargs.get("non_blocking", False)
        if on_host and not (is_asynchronous and all(map(self.is_pinned, on_host))):
            self.current_stream().synchronize()

    # Memory.

    def owns(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._memory

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._pinned

    def pinned(self, tensor: Tensor) -> Tensor:
        """Page-locks the tensor's memory."""
        self._pinned[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def allocated(self, like: Tensor) -> DeviceTensor:
        """Memory on the device."""
        tensor = poison(torch.empty_like(like))
        self._memory[tensor.untyped_storage().data_ptr()] = tensor
        return self.wrapped(tensor)

    def filled(self, value: Tensor) -> DeviceTensor:
        """A tensor on the device, whose content appears when a queued operation has run."""
        tensor = self.allocated(value)
        self.queue("fill", self.kernel_ns, (), [tensor.plain], lambda: tensor.plain.copy_(value))
        return tensor

    def wrapped(self, tensor: Tensor) -> DeviceTensor:
        wrapped: DeviceTensor = torch.Tensor._make_subclass(DeviceTensor, tensor)
        wrapped.simulated, wrapped.plain = self, tensor
        return wrapped

    def to_host(self, tensor: Tensor) -> Tensor:
        """Waits for the current stream, as every read of a device's memory does."""
        self.current_stream().synchronize()
        return tensor.clone()

    @contextmanager
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDevice]:
        """This device in the place of `torch.cuda`; `check` at the end, once everything has run."""
        monkeypatch.setattr(torch, "Generator", HostGenerator)
        fake = {
            "Stream": self.new_stream, "Event": lambda **options: SimulatedEvent(self, **options),
            "current_stream": self.current_stream, "set_device": lambda device: None, "stream": self.stream,
        }  # fmt: skip
        monkeypatch.setattr(torch, "cuda", SimpleNamespace(**vars(torch.cuda) | fake))
        with Placement(self):
            yield self
            for stream in self._streams:
                stream.synchronize()
        self.check()


def poison(tensor: Tensor) -> Tensor:
    """Fills with what no test expects: NaN, or an index that is out of every range."""
    if tensor.is_floating_point():
        return tensor.fill_(float("nan"))
    return tensor.fill_(True if tensor.dtype == torch.bool else -(2**40) if tensor.dtype == torch.int64 else -99)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


class DeviceTensor(Tensor):
    """A tensor on the simulated device: what is asked of it is queued on the current stream."""

    simulated: SimulatedDevice
    plain: Tensor  # the same memory

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]  # a descriptor
            return CUDA
        target = CPU if func is Tensor.cpu else place_of(args, kwargs) if func is Tensor.to else None
        if target is not None:
            return args[0] if target.type == "cuda" else args[0].simulated.to_host(args[0].plain)
        if "device" in kwargs:
            kwargs["device"] = CPU
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        leaves = tree_leaves((args, kwargs))
        device: SimulatedDevice = next(leaf.simulated for leaf in leaves if isinstance(leaf, DeviceTensor))
        plain_args, plain_kwargs = tree_map(plain, (args, kwargs or {}))
        if func._schema.name == "aten::_local_scalar_dense":
            device.current_stream().synchronize()
            return func(*plain_args)
        if func._schema.is_mutable:
            device.run_in_place(func, plain_args, plain_kwargs)
            return args[0]
        if func.is_view:
            return tree_map(device.wrapped, func(*plain_args, **plain_kwargs))
        return device.run(func, plain_args, plain_kwargs)


def plain(leaf: Any) -> Any:
    """The memory behind a tensor of the device; anything else as it is."""
    return leaf.plain if isinstance(leaf, DeviceTensor) else leaf


def place_of(args: Sequence[Any], kwargs: dict[str, Any]) -> torch.device | None:
    """The device among the arguments of `Tensor.to`; None where it changes the type only."""
    named = [value for value in (*args[1:2], kwargs.get("device")) if isinstance(value, (str, torch.device))]
    return torch.device(named[0]) if named else None


def empty_result(func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """What an operation returns, of the right shape and type and without content."""

    def on_meta(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")

    result = func(*tree_map(on_meta, args), **tree_map(on_meta, kwargs))
    assert isinstance(result, Tensor), f"{func} has several results"
    return torch.empty(result.shape, dtype=result.dtype)


class HostGenerator(torch.Generator):
    """Random numbers of the device: drawn on the host when the kernel is queued."""

    def __new__(cls, device: object = CPU) -> HostGenerator:
        return super().__new__(cls)

    def __init__(self, device: object = CPU) -> None:
        super().__init__()


class Placement(TorchFunctionMode):
    """Makes the tensors that are asked for on `CUDA`, or page-locked, in the simulated device's memory."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, device = dict(kwargs or {}), self._device
        if any(isinstance(leaf, DeviceTensor) for leaf in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        if func is Tensor.pin_memory:
            return device.pinned(args[0].clone())
        target = place_of(args, kwargs) if func is Tensor.to else kwargs.get("device")
        if target is not None and torch.device(target).type == "cuda":
            if func is Tensor.to:
                return device.allocated(args[0]).copy_(args[0], non_blocking=kwargs.get("non_blocking", False))
            made = func(*args, **{**kwargs, "device": CPU})
            return device.allocated(made) if func in UNINITIALISED else device.filled(made)
        if kwargs.pop("pin_memory", False):
            return device.pinned(poison(func(*args, **kwargs)))
        return func(*args, **kwargs)
