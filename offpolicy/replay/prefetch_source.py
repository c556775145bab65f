"""`replay.source=prefetch`: a thread packs the next batches into slots while the learner trains on the present ones.

A slot circulates: the learner submits it, the packing thread fills it and copies it to the device, the learner takes it
into use, hands out its batches, and submits it again. A slot is submitted as soon as another one is taken into use, and
only rows that may be drawn at that instant get into it: its batches are a function of that instant and of the sampler's
stream, and one iteration old. The packing thread has another time account than the learner, beside which it runs.
"""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from offpolicy.errors import HangError
from offpolicy.processes.handshake import LearnerGate
from offpolicy.protocols import DeviceSync
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.replay_source import RateLimitedSource, SourceSpec
from offpolicy.replay.sampler import Bounds, Draw, Sampler
from offpolicy.replay.staging import CopyStream, host_block, nbytes_text
from offpolicy.timing.device_timer import BackgroundCopyTimer, StreamSync
from offpolicy.timing.ledger import NULL_SPAN, Ledger
from offpolicy.timing.phases import PackerPhase as Phase
from offpolicy.types import NO_ACCOUNT, Account

if TYPE_CHECKING:
    from offpolicy.distributed.world import World

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
        self.staging, self.rows = staging, rows  # [U, B, W]
        self.last_use = last_use  # when the learner is done with the previous batches
        self.bounds = Bounds((), ())  # what may be drawn
        self.taken = len(staging)  # batches handed out
        self.random_before: dict[str, Any] = {}  # the sampler's stream before these batches were drawn
        self.draw: Draw | None = None

    @property
    def num_left(self) -> int:
        """Number of batches not handed out yet."""
        return len(self.staging) - self.taken


class PackerTimers(NamedTuple):
    """What the packing thread keeps time and waits with."""

    ledger: Ledger  # over `PackerPhase`
    copies: BackgroundCopyTimer | None = None  # times the copies to the device
    device_sync: DeviceSync | None = None  # waits for them


class PrefetchSource(RateLimitedSource):
    """Hands out batches that were packed ahead, as views of the slot in use."""

    kind = "prefetch"
    has_batch_wait = True

    def __init__(
        self, spec: SourceSpec, sampler: Sampler, gate: LearnerGate, steps: World, updates: int, timers: PackerTimers
    ) -> None:
        super().__init__(spec, sampler, gate, steps, updates)
        self._sampler = sampler
        self._ledger, self._copies, device_sync = timers
        self._copy_stream = CopyStream(spec.device, device_sync or StreamSync(spec.device), self._copies or NULL_SPAN)
        staging = host_block((spec.num_slots, *spec.block_shape), torch.float32, spec.device)
        is_on_host = spec.device.type == "cpu"
        in_use = self._copy_stream.learner_mark()  # the memory of the slots may have been in use until here
        self._in_use, *free = (
            Slot(host, host if is_on_host else torch.empty_like(host, device=spec.device), in_use) for host in staging
        )
        self._free, self._submitted, self._packed = deque(free), deque[Slot](), deque[Slot]()
        self._resumed: deque[tuple[Bounds, int]] = deque()  # what was open when the run was saved, and batches taken
        self._account = NO_ACCOUNT  # of the packing thread, up to the last slot it packed
        # What the thread is to pack, None at the end; and what it has packed, or what it has raised.
        self._todo, self._done = SimpleQueue[Slot | None](), SimpleQueue[Slot | Exception]()
        # A daemon, though always joined: one that hangs must not keep the process alive.
        self._thread = threading.Thread(target=self._pack_all, name="packer", daemon=True)

    def wait_batch(self) -> None:
        """Blocks until there is a batch to hand out. Raises what the packing thread raised."""
        if self._in_use.num_left:
            return
        # The learner's work on the slot is queued on its stream, all of it: from that point on the slot is free.
        self._in_use.last_use = self._copy_stream.learner_mark()
        self._free.append(self._in_use)
        if not self._submitted:
            self._submit()
        if not self._packed:
            self._receive()
        self._in_use = self._packed.popleft()
        self._submitted.popleft()

    def sample(self) -> Tensor:
        """Returns the batches [U, B, W] that are due and packed; has the next iteration's packed at once."""
        slot = self._in_use
        begin, end = slot.taken, slot.taken + min(self.num_due, slot.num_left)
        assert slot.draw is not None, "it was packed"
        per_batch = len(slot.draw.position) // len(slot.staging)
        self._sampler.hand_out(slot.draw.part(begin * per_batch, end * per_batch))
        slot.taken = end
        self.updates += end - begin
        self.gather_fresh()
        while self._free:  # last: once the packing thread is awake, the two take turns with the interpreter
            self._submit()
        return slot.rows[begin:end]

    def _submit(self) -> None:
        """Submits a free slot, with the rows that may be drawn now, or those of a slot that was open at the save."""
        slot = self._free.popleft()
        slot.bounds, slot.taken = self._resumed.popleft() if self._resumed else (self._sampler.bounds(), 0)
        self._submitted.append(slot)
        self._todo.put(slot)
        if self._thread.ident is None:
            self._thread.start()

    def _receive(self) -> None:
        """Blocks until one slot more is packed and on the device. Raises what the packing thread raised."""
        with self._copies.learner_waiting() if self._copies else NULL_SPAN:
            done = self._done.get()
        if isinstance(done, Exception):
            self._done.put(done)  # for the next call
            raise done
        self._packed.append(done)

    def _pack_all(self) -> None:
        """Runs in the packing thread: packs what is submitted, in that order."""
        try:
            self._copy_stream.enter_thread()
            while True:
                with self._ledger.phase(Phase.REQUEST_WAIT):
                    slot = self._todo.get()
                if slot is None:
                    return
                self._ledger.end_warmup()
                self._pack(slot)
                self._ledger.close()
                self._account = self._ledger.account()
                self._done.put(slot)
        except Exception as error:
            self._done.put(error)

    def _pack(self, slot: Slot) -> None:
        phase, stream = self._ledger.phase, self._copy_stream
        with phase(Phase.PACK):
            slot.random_before = self._sampler.state()
            slot.draw = self._sampler.fill(slot.staging.numpy().reshape(-1, slot.staging.shape[-1]), slot.bounds)
        if slot.rows is slot.staging:
            return
        with phase(Phase.SLOT_WAIT):
            stream.block_until(slot.last_use)
        with phase(Phase.COPY):
            stream.block_until(stream.copy(slot.rows, slot.staging, after=slot.last_use))
            if self._copies is not None:
                with stream.as_current():
                    self._copies.split_finished()

    def random_state(self) -> dict[str, Any]:
        """Returns the sampler's stream and the open slots: a new source hands out the same batches.

        Waits until all that was submitted is packed.
        """
        while len(self._packed) < len(self._submitted):
            self._receive()
        is_open = [slot for slot in (self._in_use, *self._packed) if slot.num_left]
        stream = is_open[0].random_before if is_open else self._sampler.state()
        requests = [*((slot.bounds, slot.taken) for slot in is_open), *self._resumed]
        saved = [{**bounds._asdict(), "taken": taken} for bounds, taken in requests]
        return {**super().random_state(), **stream, "requests": saved}

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Continues the sampler's stream and the open slots."""
        super().set_random_state(state)
        for saved in state["requests"]:
            self._resumed.append((Bounds(tuple(saved["first"]), tuple(saved["last"])), saved["taken"]))

    def packer_account(self) -> Account:
        """Returns the packing thread's account up to the last slot it packed; empty before that."""
        return self._account

    def describe(self) -> str:
        slot, device = self._in_use.staging, self._spec.device
        where = "on the host" if device.type == "cpu" else f"in page-locked memory and on {device}"
        slots = f"{self._spec.num_slots} slots of {nbytes_text(slot.nbytes)} {where}"
        return f"replay source: prefetch, {slots}{self._sampler.description}"

    def close(self) -> None:
        """Ends and joins the thread. Raises `HangError` if it hangs."""
        self._todo.put(None)
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            raise HangError(f"the packing thread did not end within {CLOSE_S:g} s")
