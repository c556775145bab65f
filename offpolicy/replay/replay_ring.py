"""The ring of the replay: every observation is stored once (ADR 6).

A vector step of N environments is N slots, one per environment in their order, whether it made a transition there or
not. The slot after next, N further, is the next one of the same environment, so the observation that a row ends in is
found there and not stored with it: after the last step of an episode comes the row of autoreset, which is no
transition and whose slot holds the final observation. A row of n-step replay ends up to n vector steps further. How
many is in the slot's code, which is zero where the slot is no transition; the sampler draws those again.

The observations of a step are written before the rows that end in them are committed, so they are always there:
`end`, the end of the observations, is at least N slots beyond `committed`. A committed slot never changes again.

`max_transitions` are kept however short the episodes are, each of which takes one slot more: `capacity`, the number of
slots, has room for the shortest. The writer raises the floor as older transitions go, and gives the memory below it
back. So there is never much more memory in use than `nbytes_for` says, while episodes have `SPARE` steps or more.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offpolicy import fault
from offpolicy.replay.ring import COMMITTED, DROPPED, FLOOR, HEADER_BYTES, RESERVED, WRITTEN, Ring
from offpolicy.replay.row_layout import IS_TERMINATED, OFFSET_SHIFT, RowLayout
from offpolicy.types import Float32

PAGE_BYTES = mmap.PAGESIZE
RELEASED_BYTES = 4 << 20  # of memory that is given back at once
TERMINATED = np.array(IS_TERMINATED, np.uint32)  # an array, as NumPy takes longer for a number
SPARE = 64  # one slot more for so many transitions: room for the ends of episodes


class ReplayRing(Ring):
    """A ring of slots over a buffer of `nbytes` bytes. `n_step` is the most steps of a row."""

    def __init__(
        self, buffer: memoryview, layout: RowLayout, max_transitions: int, *, num_envs: int, n_step: int = 1
    ) -> None:
        super().__init__(buffer, layout.slot_width, np.float32)
        self.layout, self.num_envs, self.max_transitions, self._n_step = layout, num_envs, max_transitions, n_step
        self.capacity -= self.capacity % num_envs
        self._rows = self._rows[: self.capacity]
        self._obs: NDArray[Any] = self._rows[:, : layout.obs_words]
        if layout.obs_dtype != "float32":
            self._obs = self._rows.view(layout.obs_dtype)[:, : layout.obs_dim]
        self._tails = self._rows[:, layout.obs_words :]
        self._codes = self._rows.view(np.uint32)[:, -1]
        self._one_step, self._terminated = np.array(num_envs), layout.terminated
        self._all_words = self._rows.view(np.uint32).reshape(-1)
        self._memory = buffer.obj if isinstance(buffer.obj, mmap.mmap) else None
        self._release_every = max(RELEASED_BYTES // layout.nbytes, 1)
        self._released = self._words[FLOOR]  # the writer's: memory below was given back
        self._head = self._words[COMMITTED]  # the writer's: where the next observation goes
        # Rows of a copy of the ring, as many as it holds where episodes are not short.
        self.copied_rows = min(self.num_slots(max_transitions, num_envs, n_step), self.capacity)

    @staticmethod
    def num_slots(max_transitions: int, num_envs: int, n_step: int) -> int:
        """Returns the slots of a ring that keeps so many transitions, where episodes have `SPARE` steps or more."""
        steps = -(-(max_transitions + max_transitions // SPARE) // num_envs)
        return (steps + n_step + 3) * num_envs

    @classmethod
    def nbytes_for(cls, max_transitions: int, layout: RowLayout, num_envs: int, n_step: int) -> int:
        """Returns the bytes that are in use when so many transitions are kept."""
        return HEADER_BYTES + cls.num_slots(max_transitions, num_envs, n_step) * layout.nbytes

    @classmethod
    def room_for(cls, max_transitions: int, layout: RowLayout, num_envs: int, n_step: int) -> int:
        """Returns the bytes of the buffer of a ring: room for episodes of one step, and for pages that are kept."""
        spare = 2 * PAGE_BYTES + RELEASED_BYTES
        return 2 * cls.nbytes_for(max_transitions, layout, num_envs, n_step) + spare

    @property
    def num_transitions(self) -> int:
        """Number of transitions that are readable now."""
        return max(self._words[WRITTEN] - self._words[DROPPED], 0)

    @property
    def num_written(self) -> int:
        """Number of transitions ever written."""
        return self._words[WRITTEN]

    @property
    def kept_from(self) -> int:
        """The first slot that the writer keeps, beside what it recycles."""
        return self._words[FLOOR]

    @property
    def end(self) -> int:
        """The end of the observations that were written, or are being written: at least `committed`."""
        return max(self._words[RESERVED], self._words[COMMITTED])

    # -- the writer ---------------------------------------------------------------------------------------------------

    def write(self, tails: Float32, obs: Float32 | None) -> None:
        """Completes the next slots with `tails` [m, A + 3], and writes the observations [N, O] of the next vector step.

        m is a multiple of N. A tail is action, reward, discount and code; its observation was written before. Reveals
        the slots.
        """
        words, num_envs = self._words, self.num_envs
        start, head = words[COMMITTED], self._head
        stop, end = start + len(tails), self.end if obs is None else max(head + num_envs, self.end)
        if words[FLOOR] < end - self.capacity:
            self._recycle(end - self.capacity)
        words[RESERVED] = end
        fault.hit("ring.reserved")
        for begin in range(0, len(tails), num_envs):
            slot = (start + begin) % self.capacity
            self._tails[slot : slot + num_envs] = tails[begin : begin + num_envs]
        if obs is not None:
            slot = head % self.capacity
            self._obs[slot : slot + num_envs] = obs
            self._head = head + num_envs
        fault.hit("ring.copied")
        if len(tails):
            words[COMMITTED] = stop
            words[WRITTEN] += int(np.count_nonzero(tails.view(np.uint32)[:, -1]))
            self._keep_most()
        fault.hit("ring.committed")
        if words[FLOOR] - self._released >= self._release_every:  # many at once: the kernel is slow to take it
            self._release()

    def write_slots(self, slots: Float32, num_complete: int) -> None:
        """Writes whole slots [m, slot_width] behind the complete ones, and reveals the first `num_complete` of them.

        The others are open: they hold observations only, those that the revealed ones end in among them. m is a
        multiple of N and at most `capacity`.
        """
        words, start = self._words, self._words[COMMITTED]
        self._head = start + len(slots)
        end = max(self._head, self.end)
        if words[FLOOR] < end - self.capacity:
            self._recycle(end - self.capacity)
        words[RESERVED] = end
        fault.hit("ring.reserved")
        filled = 0
        for place in self.spans(start, self._head):
            place[:] = slots[filled : filled + len(place)]
            filled += len(place)
        fault.hit("ring.copied")
        words[COMMITTED] = start + num_complete
        words[WRITTEN] += int(np.count_nonzero(slots[:num_complete].view(np.uint32)[:, -1]))
        self._keep_most()
        fault.hit("ring.committed")
        if words[FLOOR] - self._released >= self._release_every:
            self._release()

    def newest_obs(self) -> NDArray[Any]:
        """Returns a view of the observations [N, O] that this writer wrote last."""
        slot = (self._head - self.num_envs) % self.capacity
        return self._obs[slot : slot + self.num_envs]

    def break_off(self) -> None:
        """Ends all that is open: slots that are not committed become ones that only hold an observation."""
        open_slots = self.end - self._words[COMMITTED]
        if open_slots:
            self.write(np.zeros((open_slots, self._tails.shape[1]), np.float32), None)
        self._head = self._words[COMMITTED]

    def begin(self) -> None:
        """Goes back to the first open slot: all open observations are written again."""
        self._head = self._words[COMMITTED]

    def _recycle(self, lowest: int) -> None:
        """Raises the floor to `lowest`: the slots below are about to be written again."""
        recycled = self.spans(self._words[FLOOR], lowest)
        self._words[DROPPED] += sum(int(np.count_nonzero(slots.view(np.uint32)[:, -1])) for slots in recycled)
        self._words[FLOOR] = lowest

    def _release(self) -> None:
        """Gives the memory below the floor back, but for some between it and the newest slots behind it."""
        kept = 2 * PAGE_BYTES // self.layout.nbytes + 2
        start, self._released = self._released, self._words[FLOOR]
        self._give_back(max(start, self.end - self.capacity + kept), self._released)

    def _keep_most(self) -> None:
        """Raises the floor as long as there are enough transitions above it."""
        words = self._words
        spare = words[WRITTEN] - words[DROPPED] - self.max_transitions
        while spare > 0:
            floor = words[FLOOR]
            slot = floor % self.capacity
            here = int(np.count_nonzero(self._codes[slot : slot + self.num_envs]))
            if here > spare:
                return
            words[FLOOR] = floor + self.num_envs
            words[DROPPED] += here
            spare -= here

    def _give_back(self, start: int, stop: int) -> None:
        """Gives the memory of the slots [start, stop) back to the kernel, and of the page in which they begin.

        Keeps it all from the first refusal on: some sandboxes have no such call (`machine.gives_memory_back`).
        """
        if self._memory is None:
            return
        for rows in self.spans(start, stop) if start < stop else []:
            offset = rows.__array_interface__["data"][0] - self._rows.__array_interface__["data"][0] + HEADER_BYTES
            first, last = max(offset // PAGE_BYTES, 1), (offset + rows.nbytes) // PAGE_BYTES  # never the header's page
            if last <= first:
                continue
            try:
                fault.hit("memory.release")
                self._memory.madvise(mmap.MADV_REMOVE, first * PAGE_BYTES, (last - first) * PAGE_BYTES)
            except OSError:
                self._memory = None
                return

    def restore_slots(self, first: int, blocks: Sequence[Float32], ahead: Float32, num_written: int = 0) -> None:
        """Fills an unused ring with saved slots [n, slot_width] from `first` on, and `ahead`, the open ones.

        Keeps the newest that fit, in no more memory than while they were written. `num_written`: transitions ever
        written.
        """
        words, committed = self._words, first + sum(map(len, blocks))
        start, end = max(first, committed + len(ahead) - self.capacity), committed + len(ahead)
        # As the writer drops vector steps: not more transitions than are too many, and none once enough are gone.
        codes = np.concatenate([rows.view(np.uint32)[:, -1] for rows in blocks])
        gone = np.count_nonzero(codes[start - first :].reshape(-1, self.num_envs), axis=1).cumsum()
        spare = int(gone[-1]) - self.max_transitions if len(gone) else 0
        num_steps = min(int(gone.searchsorted(spare)) + 1, int(gone.searchsorted(spare, "right"))) if spare > 0 else 0
        floor = start + num_steps * self.num_envs
        # What was allocated elsewhere than where the slots go.
        self._give_back(floor - self.capacity + self.copied_rows, floor)
        index = first
        for rows in (*blocks, ahead):
            kept = rows[max(floor - index, 0) :]
            index += len(rows)
            for place in self.spans(index - len(kept), index):
                place[:] = kept[: len(place)]
                kept = kept[len(place) :]
        num_kept = int(np.count_nonzero(codes[floor - first :]))
        self._released = words[FLOOR] = floor
        words[RESERVED], words[COMMITTED] = end, committed
        words[WRITTEN] = max(num_written, num_kept)
        words[DROPPED] = words[WRITTEN] - num_kept

    # -- readers ------------------------------------------------------------------------------------------------------

    def read(self, index: NDArray[np.int64], out: Float32, lowest: int = -1) -> NDArray[np.bool_]:
        """Copies the rows `index` [n] as rows of a batch into `out` [n, W], contiguous.

        Returns a mask [n] of those that are transitions and were intact throughout. `lowest`: no index is below it. If
        it was not recycled they need not be looked at one by one.
        """
        # Counted from where the ring last began again: `take` brings what lies beyond its end round.
        begun = self.oldest // self.capacity * self.capacity
        slot, layout = index - begun if begun else index, self.layout
        distance = self._one_step
        if self._n_step > 1:  # slots to the next observation
            own = self._all_words.take(slot * self.width + (self.width - 1), mode="wrap")
            distance = (own >> OFFSET_SHIFT).astype(np.int64) * self.num_envs
        pairs = np.empty(2 * len(index), np.int64)  # each row, and the one that holds its next observation
        pairs[::2] = slot
        np.add(slot, distance, out=pairs[1::2])
        if layout.obs_dtype == "float32":
            self._rows.take(pairs, axis=0, out=out.reshape(-1, self.width), mode="wrap")
            codes = out.view(np.uint32)[:, self._terminated].copy()
        else:
            halves = self._rows.take(pairs, axis=0, mode="wrap").reshape(-1, 2, self.width)
            obs = halves.view(layout.obs_dtype)[:, :, : layout.obs_dim]
            out[:, layout.obs], out[:, layout.next_obs] = obs[:, 0], obs[:, 1]
            out[:, layout.obs_dim : layout.half] = halves[:, 0, layout.obs_words :]
            codes = halves[:, 0, -1].view(np.uint32)
        out[:, self._terminated] = codes & TERMINATED
        intact = codes.astype(np.bool_)
        if lowest < self.oldest:
            intact &= index >= self.oldest
        return intact

    def read_row(self, index: int, out: Float32) -> bool:
        """Copies a row into `out` [W]; returns whether it was intact throughout. One row takes less time so."""
        layout, slot = self.layout, index % self.capacity
        code = self._codes.item(slot)
        following = (index + (code >> OFFSET_SHIFT) * self.num_envs) % self.capacity
        if layout.obs_dtype == "float32":
            out[: self.width], out[self.width :] = self._rows[slot], self._rows[following]
        else:
            out[layout.obs], out[layout.next_obs] = self._obs[slot], self._obs[following]
            out[layout.obs_dim : layout.half] = self._tails[slot]
        out[self._terminated] = code & IS_TERMINATED
        return code != 0 and index >= self.oldest

    def copy_open(self) -> Float32:
        """Returns a copy of the slots [m, slot_width] from `committed` to `end`. The writer must stand still."""
        slots: Float32 = np.concatenate(self.spans(self.committed, self.end))
        slots[:, -self._tails.shape[1] :] = 0.0  # what an older slot has left there
        return slots

    def read_obs(self, start: int, stop: int) -> Float32:
        """Returns the observations [m, O] that were acted on in the slots [start, stop) that are not recycled yet."""
        slots = self.read_range(start, stop)
        obs = slots.view(self.layout.obs_dtype)[:, : self.layout.obs_dim].astype(np.float32, copy=False)
        return np.ascontiguousarray(obs[slots.view(np.uint32)[:, -1] != 0])
