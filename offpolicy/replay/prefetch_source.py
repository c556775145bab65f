"""`replay.source=prefetch`: a thread packs the next batches into slots while the learner trains on the present ones.

A slot circulates: the learner submits it with a request, the packer fills it and copies it to the device, the learner
takes it into use, hands out its batches, and submits it again. A request is submitted as soon as another slot is taken
into use, and fixes the rows that may be drawn at that instant; the batches are therefore one iteration old, unless the
newest rows are required. The packer has another time account than the learner, beside which it runs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from offpolicy.errors import HangError
from offpolicy.protocols import DeviceSync, StepCount, StepGate
from offpolicy.replay.rate_limiter import RateLimiter
from offpolicy.replay.replay_source import RateLimitedSource, SourceSpec
from offpolicy.replay.ring import Ring
from offpolicy.replay.sampler import SampleAges, Sampler
from offpolicy.replay.staging import CopyStream, Request, RequestLimits, Slot, host_block, nbytes_text
from offpolicy.saved_fields import Fields
from offpolicy.timing.device_timer import BackgroundCopyTimer, StreamSync
from offpolicy.timing.ledger import NULL_SPAN, Ledger
from offpolicy.timing.phases import PackerPhase as Phase
from offpolicy.types import NO_ACCOUNT, Account

CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class PrefetchSpec:
    """Configuration of a prefetching source of one rank."""

    source: SourceSpec
    num_slots: int = 2
    prefetch: bool = True  # False: batches are asked for only when they are needed, and exactly as many
    newest: bool = False  # an iteration's batches may be drawn only once the rows it needs have landed
    is_crowded: Callable[[], bool] = lambda: False  # True while a thread that packs takes a core from the update


def rows_recycled_while_open(limiter: RateLimiter, num_rings: int, num_slots: int) -> int:
    """Returns how many rows of a ring may be recycled, at most, between a request and the packing of its batches.

    In that time the learner uses up the other slots, and a resumed one has begun an iteration. There may be as many
    rows of autoreset as transitions, where episodes have one step.
    """
    ahead = (num_slots + 1) * limiter.chunk + limiter.lead
    return 2 * -(-ahead // num_rings)


class Packer:
    """The packing thread and the slots submitted to it. Every method is called by the learner's thread.

    `gate` is used by the packing thread only, which may wait for rows while the learner waits for something else.
    `copies` times the copies on the device; `device_sync` waits for them, on the packing thread.
    """

    def __init__(
        self,
        sampler: Sampler,
        gate: StepGate,
        device: torch.device,
        ledger: Ledger,
        *,
        copies: BackgroundCopyTimer | None = None,
        device_sync: DeviceSync | None = None,
    ) -> None:
        self.sampler = sampler
        self.copy_stream = CopyStream(device, device_sync or StreamSync(device), copies or NULL_SPAN)
        self._copies = copies
        self._gate = gate
        self._todo: deque[Slot] = deque()  # the first one is being packed
        self._packed: deque[Slot] = deque()
        self._changed = threading.Condition()  # guards the two queues above and the four fields below
        self._error: Exception | None = None
        self._account = NO_ACCOUNT
        self._is_closing = False
        self._is_waiting_for_rows = False
        self._ledger = ledger  # over `PackerPhase`, used by the packing thread only
        # A daemon, though always joined: one that waits for rows that never come must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="packer", daemon=True)

    @property
    def is_idle(self) -> bool:
        """True if no slot is submitted."""
        with self._changed:
            return not self._todo and not self._packed

    def submit(self, slot: Slot) -> None:
        """Queues a slot, to be packed as its request says."""
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
        """Returns the sampler's stream before it drew what is not handed out yet, and the requests it drew that for."""
        with self._changed:
            unfinished = [slot for slot in (in_use, *self._packed, *self._todo) if slot.num_left]
            drawn = [slot.random_before for slot in unfinished if slot.random_before is not None]
            stream = drawn[0] if drawn else self.sampler.state()
            return {**stream, "requests": [replace(slot.request, taken=slot.taken).to_json() for slot in unfinished]}

    def close(self) -> None:
        """Ends and joins the thread. Raises `HangError` if it hangs, unless it waits for rows of a run cut short."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)
        with self._changed:
            has_reason = self._is_waiting_for_rows
        if self._thread.is_alive() and not has_reason:
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
        if slot.request.bounds is None:
            with phase(Phase.ROWS_WAIT):
                self._wait_for_rows(slot.request.env_steps)
        with phase(Phase.PACK):
            bounds = slot.request.bounds or self.sampler.bounds()
            with self._changed:
                slot.request = replace(slot.request, bounds=bounds)
                slot.random_before = self.sampler.state()
            slot.pack(self.sampler, bounds)
        if slot.is_staged:
            with phase(Phase.SLOT_WAIT):
                self.copy_stream.block_until(slot.last_use)
            with phase(Phase.COPY):
                self.copy_stream.block_until(slot.copy_to_device(self.copy_stream))
                if self._copies is not None:
                    with self.copy_stream.as_current():
                        self._copies.split_finished()

    def _wait_for_rows(self, env_steps: int) -> None:
        with self._changed:
            self._is_waiting_for_rows = True
        try:
            self._gate.wait_for(env_steps)
        finally:
            with self._changed:
                self._is_waiting_for_rows = False


class PrefetchSource(RateLimitedSource):
    """Hands out batches that were packed ahead, as views of the slot in use.

    Raises `ConfigError` if the host refuses the page-locked memory of the slots.
    """

    kind = "prefetch"

    def __init__(
        self,
        spec: PrefetchSpec,
        rings: Sequence[Ring],
        packer: Packer,
        gate: StepGate,
        steps: StepCount,
        updates: int,
    ) -> None:
        super().__init__(spec.source, rings, gate, steps, updates)
        self._plan, self._packer, self._ages = spec, packer, SampleAges(rings)
        self._staging = host_block(
            (spec.num_slots, *spec.source.block_shape), torch.float32, spec.source.device,
            "replay.source=prefetch", "lower replay.slots or algo.batch_size, or use replay.source=direct",
        )  # fmt: skip
        is_on_host = spec.source.device.type == "cpu"
        slots = [
            Slot(host, host if is_on_host else torch.empty_like(host, device=spec.source.device))
            for host in self._staging
        ]
        for slot in slots:
            slot.last_use = packer.copy_stream.learner_mark()  # its memory may have been in use until here
        self._in_use, self._free = slots[0], deque(slots[1:])
        self._requests: deque[Request] = deque()  # requests that are not submitted yet
        self._is_postponed = False  # True from a sample to the release behind it, if packing waits for that

    @property
    def samples(self) -> int:
        return self._ages.samples

    @property
    def sample_age_sum(self) -> float:
        return self._ages.convert()

    has_batch_wait = True

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
        """Returns the batches [U, B, W] that are due and packed; requests the next iteration's at once."""
        rows, draw = self._in_use.hand_out(min(self.num_due, self._in_use.num_left))
        self.updates += len(rows)
        self._ages.add(draw)
        self.gather_fresh()
        if self._plan.newest:
            self._in_use.drop_rest()  # the next iteration needs newer rows
        self._is_postponed = self._plan.prefetch and self._plan.is_crowded()
        if self._is_postponed:  # asked for now: the grant of another rank lets newer rows in before this one's release
            self._requests.extend(self._postponed())
        else:
            self._submit_ahead()  # last: once the packer is awake, the two threads take turns with the interpreter
        return rows

    def release(self) -> None:
        """Grants the collectors what the next iteration needs, and has batches packed that were not yet asked for."""
        super().release()
        if self._is_postponed:
            self._is_postponed = False
            self._submit_ahead()

    def _submit_ahead(self) -> None:
        """Submits as much as there is room for; of the newest rows, only for the next iteration's."""
        while self._plan.prefetch and self._free and (self._packer.is_idle or not self._plan.newest):
            self._submit()

    def _submit(self) -> None:
        """Submits a free slot with a request that was open when the run was saved, else with a new one."""
        sampler, request = self._packer.sampler, self._requests.popleft() if self._requests else None
        if request is None or (request.bounds is not None and not sampler.has_written(request.bounds)):
            self._requests.clear()
            request = self._new_request()
        slot = self._free.popleft()
        slot.accept(request)
        self._packer.submit(slot)

    def _new_request(self) -> Request:
        num_batches = self._spec.rate_limiter.max_updates if self._plan.prefetch else self.num_due
        bounds = None if self._plan.newest else self._packer.sampler.bounds()
        return Request(num_batches, bounds, self.next_needed)

    def _postponed(self) -> list[Request]:
        """Returns the requests that the free slots still need; of the newest rows, only the next iteration's."""
        num_wanted = min(len(self._free), 1) if self._plan.newest else len(self._free)
        return [self._new_request() for _ in range(num_wanted - len(self._requests))]

    def random_state(self) -> dict[str, Any]:
        """Returns the sampler's stream and the open requests: a new source hands out the same batches."""
        state = self._packer.random_state(self._in_use)
        state["requests"] += [request.to_json() for request in self._requests]  # what is not submitted yet
        return state | self.returns_state()

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Continues the sampler's stream and the open requests, if the state has any. Raises `CheckpointError`."""
        fields = Fields("sampler", state)
        self._packer.sampler.set_state(state)
        self.set_returns_state(state)
        requests = fields.value("requests") if "requests" in fields else []
        if not isinstance(requests, list) or len(requests) > self._plan.num_slots:
            raise fields.refused("requests", f"a list of at most replay.slots={self._plan.num_slots} requests")
        limiter = self._spec.rate_limiter
        limits = RequestLimits(limiter.max_updates, len(self._rings), limiter.total)
        self._requests.extend(Request.from_json(request, limits) for request in requests)

    def packer_account(self) -> Account:
        return self._packer.account()

    def describe(self) -> str:
        plan, size = self._plan, nbytes_text(self._staging.nbytes // self._plan.num_slots)
        where = (
            "on the host" if plan.source.device.type == "cpu" else f"in page-locked memory and on {plan.source.device}"
        )
        return f"replay source: prefetch, {plan.num_slots} slots of {size} {where}{self._packer.sampler.describe()}"

    def close(self) -> None:
        self._packer.close()
