"""Chooses how the updates of a learner are made (`algo.compile`), at its first update.

The first batch has the shapes of all, so it decides: recordings and compiled code are made for it, tried on the
learner's own tensors, and the learner's state is put back. All of that is part of the first iteration, which the time
account counts as warm-up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from offpolicy.algos.base_learner import BaseLearner
from offpolicy.algos.learners import ReplayLearner, Update
from offpolicy.algos.recorded import GRAPH, REDUCE_OVERHEAD, ReplacedUpdate, replaced_update
from offpolicy.config.sections import AlgoConfig
from offpolicy.protocols import DeviceSync
from offpolicy.timing.clock import MonotonicClock
from offpolicy.training.rank_context import RankContext
from offpolicy.training.ranks import LearnerRanks
from offpolicy.training.speed_tuner import WORTHWHILE, Choice
from offpolicy.types import Batch

OFF, AUTO = "off", "auto"  # values of `algo.compile`
MODES = (OFF, GRAPH, REDUCE_OVERHEAD)  # how updates can be made
TRIED = {"cuda": (GRAPH,), "cpu": ()}  # with `AUTO`, by the device
NOTHING_TO_TRY = "a CPU has no launches to save; algo.compile=reduce-overhead compiles there"
ROUNDS, BLOCK_UPDATES = 5, 20  # blocks of each mode in turns, and updates of a block

Make = Callable[[str, ReplayLearner, torch.device], ReplacedUpdate]
Gather = Callable[[Tensor], Tensor]
Report = Callable[[str, str], None]  # takes the mode that was chosen, and a line that says why


class UpdateModes:
    """The update of a learner until it is called: then it replaces itself by the one that it chooses.

    Several ranks choose the same one: what all of them can do, by the seconds of the slowest.
    """

    def __init__(  # noqa: PLR0913  # what it tries, measures with, agrees through and reports to
        self,
        learner: ReplayLearner,
        algo: AlgoConfig,
        device: torch.device,
        device_sync: DeviceSync,
        choice: Choice,
        report: Report,
        gather: Gather,
        make: Make = replaced_update,
        now_ns: Callable[[], int] = MonotonicClock.now_ns,
    ) -> None:
        """`choice` has a checkpoint's mode, which stays with `AUTO`; the one in use is written there.

        `gather` returns the vectors [n] of all ranks as [R, n].
        """
        self._learner, self._algo, self._device, self._device_sync = learner, algo, device, device_sync
        self._choice, self._report, self._make, self._now_ns = choice, report, make, now_ns
        self._gather = gather
        self._refusals: dict[str, str] = {}  # why a mode is impossible

    def __call__(self, batch: Batch, has_actor_step: bool) -> None:  # noqa: FBT001  # an `Update`
        """Chooses, makes one update, and leaves the others to what was chosen. Collective.

        Raises `RuntimeError` if the device failed while a mode was tried.
        """
        before = self._choice.update_mode
        mode, update, reasons = self._choose(batch)
        self._choice.update_mode, self._learner.run_update = mode, update
        is_measured = self._algo.compile == AUTO and bool(TRIED[self._device.type]) and not self._refusals
        self._choice.measured_on = self._device.type if is_measured else None
        if before not in (None, mode):
            reasons.append(f"the continuation is not bitwise: updates were made with {before} before")
        text = "; ".join(filter(None, reasons))
        text = f"algo.compile={self._algo.compile}: {mode}{text and ', '}{text}"
        self._report(mode, text)
        if isinstance(update, ReplacedUpdate):
            kernel_by_kernel = f"rows, not {len(batch.obs)} as the first, is learnt from kernel by kernel"
            update.report_other = lambda other: self._report(
                mode, f"{text}; a batch of {len(other.obs)} {kernel_by_kernel}"
            )
        update(batch, has_actor_step)

    def _choose(self, batch: Batch) -> tuple[str, Update, list[str]]:
        """Returns the mode, the update, and what speaks for or against each of them."""
        wanted = self._wanted()
        updates: dict[str, Update] = {OFF: self._learner.update_once}
        seconds: dict[str, float] = {}
        if wanted:
            start = self._learner.state()
            updates |= self._prepared(wanted, batch)
            if self._algo.compile == AUTO and not self._is_kept() and len(updates) > 1:
                seconds = self._measured(updates, batch)
            self._learner.load_state(start)
        # What is not measured is taken if it is possible: `OFF` counts as the slower one.
        agreed = self._agreed(seconds or {mode: float(mode == OFF) for mode in updates})
        self._refusals |= {mode: "another rank cannot" for mode in updates if math.isinf(agreed[mode])}
        mode = _fastest(agreed)
        speeds = ", ".join(
            f"{name} {1e3 * agreed[name]:.2f} ms per update" for name in seconds if agreed[name] < math.inf
        )
        refusals = [f"{name} is impossible: {text}" for name, text in self._refusals.items()]
        unmeasured = "" if wanted else "as before" if self._is_kept() else NOTHING_TO_TRY
        return mode, updates[mode], [unmeasured, speeds, *refusals]

    def _wanted(self) -> Sequence[str]:
        if self._algo.compile != AUTO:
            return (self._algo.compile,)
        before = self._choice.update_mode
        if self._is_kept() and before is not None:
            return () if before == OFF else (before,)
        return TRIED[self._device.type]

    def _is_kept(self) -> bool:
        """True if the mode of the checkpoint stays: `AUTO` measured it on a device of this type."""
        return self._choice.measured_on == self._device.type

    def _prepared(self, wanted: Sequence[str], batch: Batch) -> dict[str, Update]:
        updates: dict[str, Update] = {}
        for mode in wanted:
            try:
                update = self._make(mode, self._learner, self._device)
                update.prepare(batch)
            except Exception as error:  # of the device, the compiler and its files; what they cannot, plain kernels can
                self._refusals[mode] = _reason(error)
                self._require_device(mode, error)
            else:
                updates[mode] = update
        return updates

    def _require_device(self, mode: str, cause: Exception) -> None:
        """Raises `RuntimeError` if the device can do nothing any more since `mode` failed."""
        try:
            self._device_sync.wait()
        except RuntimeError:
            raise RuntimeError(f"algo.compile={mode}: the device failed: {self._refusals[mode]}") from cause

    def _agreed(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """Returns the seconds per update of the slowest rank, by mode; inf where one of them cannot. Collective."""
        own = torch.tensor([seconds.get(mode, math.inf) for mode in MODES], device=self._device)
        return dict(zip(MODES, self._gather(own).amax(dim=0).tolist(), strict=True))

    def _measured(self, updates: Mapping[str, Update], batch: Batch) -> dict[str, float]:
        """Returns the seconds per update of each mode: the median of blocks in turns."""
        blocks: dict[str, list[float]] = {mode: [] for mode in updates}
        for _ in range(ROUNDS):
            for mode, update in updates.items():
                self._device_sync.wait()
                begin_ns = self._now_ns()
                for num_updates in range(1, BLOCK_UPDATES + 1):
                    update(batch, self._learner.has_actor_step(num_updates))
                self._device_sync.wait()
                blocks[mode].append((self._now_ns() - begin_ns) / BLOCK_UPDATES / 1e9)
        return {mode: statistics.median(times) for mode, times in blocks.items()}


def _reason(error: Exception) -> str:
    """Returns the first line of an error; the type before it, unless it is one of torch's own, a RuntimeError."""
    line, name = str(error).strip().partition("\n")[0], type(error).__name__
    if not line:
        return name
    return line if isinstance(error, RuntimeError) else f"{name}: {line}"


def _fastest(seconds: Mapping[str, float]) -> str:
    """Returns the fastest mode, if it is worth while; else `OFF`."""
    fastest = min(seconds, key=lambda mode: seconds[mode])
    return fastest if WORTHWHILE * seconds[fastest] <= seconds[OFF] else OFF


def choose_update_mode(rank: RankContext, ranks: LearnerRanks, learner: BaseLearner, choice: Choice) -> None:
    """Has the learner choose at its first update, where `algo.compile` asks for it."""
    if rank.cfg.algo.compile == OFF or not isinstance(learner, ReplayLearner):
        if choice.update_mode not in (None, OFF):
            rank.warn(f"the continuation is not bitwise: updates were made with {choice.update_mode} before")
        choice.update_mode, choice.measured_on = OFF, None
        return

    def report(mode: str, text: str) -> None:
        if rank.is_leader:
            rank.child.send("update_mode", mode=mode, text=text)
        else:
            rank.note(f"learner rank {rank.rank}: {text}")

    device_sync = rank.new_device_sync()  # waits that no lane of the device's timer contains
    gather = ranks.exchange.gather
    learner.run_update = UpdateModes(learner, rank.cfg.algo, rank.device, device_sync, choice, report, gather)


def slow_precision(algo: AlgoConfig, device: torch.device) -> str:
    """Returns a warning where bfloat16 is slower than float32; '' where it is not, as far as is known."""
    if algo.precision == "fp32" or device.type != "cpu" or has_bf16_products():
        return ""
    return "algo.precision=bf16: this CPU has no bfloat16 products; an update takes many times as long as with fp32"


def has_bf16_products() -> bool:
    """True for a CPU with instructions for products of bfloat16: AVX-512 BF16 or AMX."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
