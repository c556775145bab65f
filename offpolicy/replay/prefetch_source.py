"""`replay.source=prefetch`: a thread packs the next batches into slots while the learner trains on the present ones.

A slot circulates: the learner submits it, the packer fills it and copies it to the device, the learner takes it into
use, hands out its batches, and submits it again. A slot is submitted as soon as another one is taken into use, and only
rows that may be drawn at that instant get into it: its batches are a function of that instant and of the sampler's
stream, and one iteration old. The packer has another time account than the learner, beside which it runs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpolicy.errors import HangError
from offpolicy.protocols import DeviceSync, StepCount, StepGate
from offpolicy.replay.demonstration_sampler import Sampler
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.replay_source import RateLimitedSource, SourceSpec
from offpolicy.replay.ring import Ring
from offpolicy.replay.sampler import Bounds, Draw, SampleAges
from offpolicy.replay.staging import CopyStream, host_block, nbytes_text
from offpolicy.timing.device_timer import BackgroundCopyTimer, StreamSync
from offpolicy.timing.ledger import NULL_SPAN, Ledger
from offpolicy.timing.phases import PackerPhase as Phase
from offpolicy.types import NO_ACCOUNT, Account

CLOSE_S = 5.0


def rows_recycled_while_open(limiter: RateLimiter, num_rings: int, num_slots: int) -> int:
    """Returns how many rows of a ring may be recycled, at most, between a slot's submission and its packing.

    In that time the learner uses up the other slots, and a resumed one has begun an iteration. There may be as many
    rows of autoreset as transitions, where episodes have one step.
    """
    ahead = (num_slots + 1) * limiter.chunk + limiter.lead
    return 2 * -(-ahead // num_rings)


class Slot:
    """Room for the batches of the longest iteration: `staging` on the host, `rows` on the device; one block on the CPU.

    Its states in turn: free, submitted, packed, in use. Only one thread uses it at any time.
    """

    def __init__(self, staging: Tensor, rows: Tensor, last_use: torch.Event | None) -> None:
        self._staging, self._rows = staging, rows  # [U, B, W]
        self.last_use = last_use  # when the learner is done with the previous batches
        self.bounds = Bounds((), ())  # what may be drawn
        self.taken = len(staging)  # batches handed out
        self.random_before: dict[str, Any] | None = None  # the sampler's stream before these batches were drawn
        self._draw = Draw(np.empty(0, np.int64), np.empty(0, np.int64))

    @property
    def num_left(self) -> int:
        """Number of batches not handed out yet."""
        return len(self._staging) - self.taken

    @property
    def is_staged(self) -> bool:
        """True if packed batches must be copied to the device."""
        return self._rows is not self._staging

    def pack(self, sampler: Sampler) -> None:
        """Draws and gathers the batches."""
        self._draw = sampler.fill(self._staging.numpy().reshape(-1, self._staging.shape[-1]), self.bounds)

    def copy_to_device(self, copy_stream: CopyStream) -> torch.Event | None:
        """Starts the copy of the packed batches; returns the mark of its end."""
        return copy_stream.copy(self._rows, self._staging, after=self.last_use)

    def hand_out(self, count: int) -> tuple[Tensor, Draw]:
        """Returns the next batches [count, B, W], valid until the slot is free again, and their rows."""
        begin, end = self.taken, self.taken + count
        self.taken = end
        per_batch = len(self._draw.position) // len(self._staging)
        return self._rows[begin:end], self._draw.part(begin * per_batch, end * per_batch)


class Packer:
    """The packing thread and the slots submitted to it. Every method is called by the learner's thread.

    `copies` times the copies on the device; `device_sync` waits for them, on the packing thread.
    """

    def __init__(
        self,
        sampler: Sampler,
        device: torch.device,
        ledger: Ledger,
        *,
        copies: BackgroundCopyTimer | None = None,
        device_sync: DeviceSync | None = None,
    ) -> None:
        self.sampler = sampler
        self.copy_stream = CopyStream(device, device_sync or StreamSync(device), copies or NULL_SPAN)
        self._copies = copies
        self._todo: deque[Slot] = deque()  # the first one is being packed
        self._packed: deque[Slot] = deque()
        self._changed = threading.Condition()  # guards the two queues above and the three fields below
        self._error: Exception | None = None
        self._account = NO_ACCOUNT
        self._is_closing = False
        self._ledger = ledger  # over `PackerPhase`, used by the packing thread only
        # A daemon, though always joined: one that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="packer", daemon=True)

    @property
    def is_idle(self) -> bool:
        """True if no slot is submitted."""
        with self._changed:
            return not self._todo and not self._packed

    def submit(self, slot: Slot) -> None:
        """Queues a slot, to be packed with rows of its bounds."""
        with self._changed:
            self._todo.append(slot)
            self._changed.notify_all()
        if self._thread.ident is None:
            self._thread.start()

    def take(self) -> Slot:
        """Returns the slot submitted first, once it is packed and on the device. Raises what the thread raised."""
        with self._copies.learner_waiting() if self._copies else NULL_SPAN, self._changed:
            self._changed.wait_for(lambda: self._packed or self._error)
            if self._error is not None:
                raise self._error
            return self._packed.popleft()

    def account(self) -> Account:
        """Returns the thread's account up to the last slot it packed; empty before that."""
        with self._changed:
            return self._account

    def random_state(self, in_use: Slot) -> dict[str, Any]:
        """Returns the sampler's stream before it drew what is not handed out yet, and what it drew that from."""
        with self._changed:
            unfinished = [slot for slot in (in_use, *self._packed, *self._todo) if slot.num_left]
            drawn = [slot.random_before for slot in unfinished if slot.random_before is not None]
            stream = drawn[0] if drawn else self.sampler.state()
            return {**stream, "requests": [{**slot.bounds._asdict(), "taken": slot.taken} for slot in unfinished]}

    def close(self) -> None:
        """Ends and joins the thread. Raises `HangError` if it hangs."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            raise HangError(f"the packing thread did not end within {CLOSE_S:g} s")

    def _run(self) -> None:
        try:
            self.copy_stream.enter_thread()
            while True:
                with self._ledger.phase(Phase.REQUEST_WAIT), self._changed:
                    self._changed.wait_for(lambda: self._todo or self._is_closing)
                    if self._is_closing:
                        return
                    slot = self._todo[0]
                self._ledger.end_warmup()
                self._pack(slot)
                self._ledger.close()
                with self._changed:
                    self._account = self._ledger.account()
                    self._packed.append(self._todo.popleft())
                    self._changed.notify_all()
        except Exception as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _pack(self, slot: Slot) -> None:
        phase = self._ledger.phase
        with phase(Phase.PACK):
            with self._changed:
                slot.random_before = self.sampler.state()
            slot.pack(self.sampler)
        if slot.is_staged:
            with phase(Phase.SLOT_WAIT):
                self.copy_stream.block_until(slot.last_use)
            with phase(Phase.COPY):
                self.copy_stream.block_until(slot.copy_to_device(self.copy_stream))
                if self._copies is not None:
                    with self.copy_stream.as_current():
                        self._copies.split_finished()


class PrefetchSource(RateLimitedSource):
    """Hands out batches that were packed ahead, as views of the slot in use.

    Raises `ConfigError` if the host refuses the page-locked memory of the slots.
    """

    kind = "prefetch"
    has_batch_wait = True

    def __init__(
        self,
        spec: SourceSpec,
        rings: Sequence[Ring],
        packer: Packer,
        gate: StepGate,
        steps: StepCount,
        updates: int,
    ) -> None:
        super().__init__(spec, rings, gate, steps, updates)
        self._packer, self._ages = packer, SampleAges(rings)
        self._staging = host_block(
            (spec.num_slots, *spec.block_shape), torch.float32, spec.device,
            "replay.source=prefetch", "lower replay.slots or algo.batch_size, or use replay.source=direct",
        )  # fmt: skip
        is_on_host = spec.device.type == "cpu"
        in_use = packer.copy_stream.learner_mark()  # the memory of the slots may have been in use until here
        self._in_use, *free = (
            Slot(host, host if is_on_host else torch.empty_like(host, device=spec.device), in_use)
            for host in self._staging
        )
        self._free = deque(free)
        self._resumed: deque[tuple[Bounds, int]] = deque()  # what was open when the run was saved, and batches taken

    @property
    def samples(self) -> int:
        return self._ages.samples

    @property
    def sample_age_sum(self) -> float:
        return self._ages.convert()

    def wait_batch(self) -> None:
        """Blocks until there is a batch to hand out. Raises what the packing thread raised."""
        if self._in_use.num_left:
            return
        # The learner's work on the slot is queued on its stream, all of it: from that point on the slot is free.
        self._in_use.last_use = self._packer.copy_stream.learner_mark()
        self._free.append(self._in_use)
        if self._packer.is_idle:
            self._submit()
        self._in_use = self._packer.take()

    def sample(self) -> Tensor:
        """Returns the batches [U, B, W] that are due and packed; has the next iteration's packed at once."""
        rows, draw = self._in_use.hand_out(min(self.num_due, self._in_use.num_left))
        self.updates += len(rows)
        self._ages.add(draw)
        self.gather_fresh()
        while self._free:  # last: once the packer is awake, the two threads take turns with the interpreter
            self._submit()
        return rows

    def _submit(self) -> None:
        """Submits a free slot, with the rows that may be drawn now, or those of a slot that was open at the save."""
        slot = self._free.popleft()
        slot.bounds, slot.taken = self._resumed.popleft() if self._resumed else (self._packer.sampler.bounds(), 0)
        slot.random_before = None
        self._packer.submit(slot)

    def random_state(self) -> dict[str, Any]:
        """Returns the sampler's stream and the open slots: a new source hands out the same batches."""
        state = self._packer.random_state(self._in_use)
        not_submitted = [{**bounds._asdict(), "taken": taken} for bounds, taken in self._resumed]
        return state | {"requests": state["requests"] + not_submitted} | self.returns_state()

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Continues the sampler's stream and the open slots."""
        self._packer.sampler.set_state(state)
        self.set_returns_state(state)
        for saved in state["requests"]:
            self._resumed.append((Bounds(tuple(saved["first"]), tuple(saved["last"])), saved["taken"]))

    def packer_account(self) -> Account:
        return self._packer.account()

    def describe(self) -> str:
        size, device = nbytes_text(self._staging[0].nbytes), self._spec.device
        where = "on the host" if device.type == "cpu" else f"in page-locked memory and on {device}"
        slots = f"{len(self._staging)} slots of {size} {where}"
        return f"replay source: prefetch, {slots}{self._packer.sampler.describe()}"

    def close(self) -> None:
        self._packer.close()
