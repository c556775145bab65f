"""The search of `offpolicy tune`: which settings of a run to try, in which order, and which of them to keep.

Nothing that it tries changes what is learnt per update. The model of a finished trial predicts the next one, at best;
the most promising change is tried first, and one that cannot matter is not tried.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from offpolicy.analysis.explain import FinishedRun
from offpolicy.config.parsing import is_within
from offpolicy.config.schema import RunConfig
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.timing.what_if import ONE_MORE_COLLECTOR, PER_UPDATE

WORTHWHILE = 1.03  # ratio to the best rate so far below which a change is no gain, predicted or measured
RESERVED = 3  # trials that must fit into the time left before another change is tried: it, and a repetition of two
MODES = ("alternate", "overlap")
KEYS = {  # every key that may be changed, and what the change means beyond the speed
    "collect.mode": "overlap: the collector acts with weights that are one update older",
    "env.num_envs": "changes how many environments collect: a batch holds more of them",
    "env.vectorization": "",
    "collect.num_collectors": "changes how many environments collect: a batch holds more of them",
    "replay.source": "prefetch: rows are chosen one iteration earlier; resident: by another random stream",
    "threads.learner": "",
    "threads.collector": "",
    "eval.beside": "",
}
OF_ROLLOUTS = ("env.num_envs", "collect.num_collectors")  # they decide the rows of a batch of rollouts
Values = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Machine:
    """The parts of the machine that decide what can be faster."""

    num_cores: int
    has_gpu: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """The rates of a trial in its report intervals, in env steps per second."""

    rates: tuple[float, ...]
    busy: float = 0.0  # share of the cores that other programs used meanwhile
    threads: int | None = None  # of the learner, as they ran
    run: FinishedRun | None = None  # None: it has no account to predict from

    @property
    def rate(self) -> float:
        """The median."""
        return statistics.median(self.rates)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The bounds of the middle half of the intervals; of a single one, that one."""
        if len(self.rates) == 1:
            return self.rates[0], self.rates[0]
        low, _, high = statistics.quantiles(self.rates, n=4, method="inclusive")
        return low, high

    def is_faster(self, other: Measured) -> bool:
        """True if the rate is higher by more than the spread of the two and by more than `WORTHWHILE`."""
        return self.quartiles[0] > other.quartiles[1] and self.rate > WORTHWHILE * other.rate

    def verdict(self, best: Measured) -> str:
        """Returns how the rate compares with that of the best setting so far."""
        if self.is_faster(best):
            return "faster"
        return "slower" if self.quartiles[1] < best.quartiles[0] else "within the spread"


class TrialFailed(Exception):
    """A trial has no rate; the text is the reason."""


class Move(NamedTuple):
    """A change of some keys, and the model's words for it."""

    values: Values
    what_if: str = ""  # name among the what-ifs of a run
    factors: Mapping[str, float] | None = None  # else: factors of the cost of phases, at best; None: not known

    @property
    def text(self) -> str:
        """The change as overrides."""
        return " ".join(f"{key}={value}" for key, value in self.values.items())


@dataclass(frozen=True, slots=True)
class Row:
    """A trial: what was changed against the start, predicted and measured."""

    change: str
    predicted: float | None
    measured: Measured | None
    verdict: str


@dataclass(slots=True)
class Tuning:
    """The rows so far, the values to write, and the reasons why something was not tried."""

    rows: list[Row] = field(default_factory=list)
    values: dict[str, str | int] = field(default_factory=dict)
    not_tried: dict[str, str] = field(default_factory=dict)


def predicted_steps_per_sec(measured: Measured, move: Move) -> float | None:
    """Returns env steps per second after a change, at best; None where the model knows nothing about it."""
    run = measured.run
    if run is None or (move.what_if and move.what_if not in run.what_ifs):
        return None
    if not move.what_if and move.factors is None:
        return None
    then = run.what_ifs[move.what_if] if move.what_if else run.pipeline.scaled(move.factors or {})
    return measured.rate * run.predicted(then) / run.between_pauses


def moves(cfg: RunConfig, held: Mapping[str, str], machine: Machine) -> list[Move]:
    """Returns the changes of one step from a configuration that touch none of the keys in `held`."""
    found = (*_mode(cfg), *_environments(cfg, machine), *_collectors(cfg, machine), *_source(cfg, machine))
    every = (*found, *_threads(cfg, machine))
    return [move for move in every if not held.keys() & move.values.keys()]


def held_keys(cfg: RunConfig, typed: Sequence[str], kept: Sequence[str]) -> dict[str, str]:
    """Returns the keys of `KEYS` that are not changed, each with the reason."""
    held = {key: "--keep" for key in KEYS if is_within(key, tuple(kept))}
    held |= {key: "given on the command line" for key in KEYS if is_within(key, tuple(typed))}
    if cfg.algo.learns_from_rollouts:
        held |= dict.fromkeys(OF_ROLLOUTS, "a batch of rollouts would have another size")
        held["replay.source"] = "rollouts have no replay"
    if cfg.collect.mode == "auto" or cfg.collect_mode == "free":
        reason = "auto: each run tries the modes" if cfg.collect.mode == "auto" else "free: a short trial shows no lag"
        held.setdefault("collect.mode", reason)
    if cfg.runner.name == "double_buffer":
        held.setdefault("replay.source", "runner=double_buffer is that of prefetch")
    if cfg.runner.world_size > 1:
        held.setdefault("collect.num_collectors", "several ranks share the collectors of their host")
    elif cfg.threads.learner == "auto":
        held.setdefault("threads.learner", "auto: each run tries the numbers")
    return held


def _mode(cfg: RunConfig) -> Iterator[Move]:
    for mode in MODES:
        if mode != cfg.collect_mode:
            yield Move({"collect.mode": mode}, what_if=f"collect.mode={mode}")


def _environments(cfg: RunConfig, machine: Machine) -> Iterator[Move]:
    """Yields twice the environments, and other ways to step them."""
    env, twice = cfg.env, 2 * cfg.env.num_envs
    # Of an env step, twice the environments halve what is done once per vector step and once per iteration.
    halved = dict.fromkeys([*CollectorPhase, *LearnerPhase], 0.5) | dict.fromkeys([*PER_UPDATE, "env_step"], 1.0)
    yield Move({"env.num_envs": twice}, factors=halved)
    if env.vectorization != "async":
        for num_envs, factors in ((env.num_envs, {}), (twice, halved)):
            if num_envs > 1:
                side_by_side = 1.0 / min(num_envs, machine.num_cores)
                values = {"env.num_envs": num_envs} if num_envs != env.num_envs else {}
                together = {**factors, CollectorPhase.ENV_STEP: side_by_side}
                yield Move({**values, "env.vectorization": "async"}, factors=together)
    elif env.num_envs > 1:
        yield Move({"env.vectorization": "sync"})
    if env.vectorization != "mujoco" and env.num_envs > 1:
        yield Move({"env.vectorization": "mujoco"}, factors={CollectorPhase.ENV_STEP: 1.0 / machine.num_cores})


def _collectors(cfg: RunConfig, machine: Machine) -> Iterator[Move]:
    if cfg.collect.num_collectors < machine.num_cores:
        yield Move({"collect.num_collectors": cfg.collect.num_collectors + 1}, what_if=ONE_MORE_COLLECTOR)


def _source(cfg: RunConfig, machine: Machine) -> Iterator[Move]:
    """Yields the other sources of batches: they take the packing, or on a GPU the copy, off the learner's thread."""
    on_gpu, now = machine.has_gpu and cfg.device != "cpu", _source_now(cfg, machine)
    hidden: dict[str, float] = {LearnerPhase.REPLAY_SAMPLE: 0.0, LearnerPhase.H2D: 0.0}
    for source in ("direct", "prefetch", *(("resident",) if on_gpu else ())):
        if source != now:
            yield Move({"replay.source": source}, factors=hidden if now == "direct" else None)


def _source_now(cfg: RunConfig, machine: Machine) -> str:
    on_gpu = machine.has_gpu and cfg.device != "cpu"
    automatic = "prefetch" if on_gpu or cfg.runner.name == "double_buffer" else "direct"
    return automatic if cfg.replay.source == "auto" else cfg.replay.source


def _threads(cfg: RunConfig, machine: Machine) -> Iterator[Move]:
    """Yields other numbers of threads, as far as a run does not try them itself."""
    learner, collector = _threads_now(cfg, machine)
    if learner > 1:
        yield Move({"threads.learner": learner // 2})
    if 2 * learner * cfg.runner.world_size <= machine.num_cores:
        yield Move({"threads.learner": 2 * learner}, factors={LearnerPhase.TRAIN: 0.5})
    if 2 * collector <= machine.num_cores:
        yield Move({"threads.collector": 2 * collector}, factors={CollectorPhase.ACTION_SELECT: 0.5})


def _threads_now(cfg: RunConfig, machine: Machine) -> tuple[int, int]:
    learner, collector = cfg.threads.learner, cfg.threads.collector
    shared = max(machine.num_cores // cfg.runner.world_size, 1)
    return shared if learner == "auto" else learner, 1 if collector == "auto" else collector


def start_values(cfg: RunConfig, machine: Machine) -> Values:
    """Returns the values that a change starts from: those that stand for `null` and `auto`, where a value does."""
    learner, collector = _threads_now(cfg, machine)
    return {
        "collect.mode": cfg.collect_mode,
        "env.num_envs": cfg.env.num_envs,
        "env.vectorization": cfg.env.vectorization,
        "collect.num_collectors": cfg.collect.num_collectors,
        "replay.source": _source_now(cfg, machine),
        "threads.learner": learner,
        "threads.collector": collector,
    }


RunTrial = Callable[[Values], Measured]
Predict = Callable[[Measured, Move], float | None]


class Search:
    """Tries one change after the other from the best setting so far, and keeps those that are faster."""

    def __init__(  # noqa: PLR0913  # the parts of the world that a test replaces, and the limit
        self,
        start: Values,
        run_trial: RunTrial,
        moves_from: Callable[[Values], list[Move]],
        elapsed_s: Callable[[], float],
        budget_s: float,
        predict: Predict = predicted_steps_per_sec,
        report: Callable[[Row], None] = lambda row: None,
    ) -> None:
        """`moves_from` returns the changes from given values, all of which differ from those of `start`."""
        self._start = start
        self._run_trial, self._moves_from, self._predict = run_trial, moves_from, predict
        self._elapsed_s, self._budget_s, self._report = elapsed_s, budget_s, report
        self._longest_s = 0.0
        self._tried: set[frozenset[tuple[str, str | int]]] = set()
        self.result = Tuning()

    def run(self) -> Tuning:
        """Searches until no change is left or the time is over. Raises `TrialFailed` if the start itself fails."""
        start = best = self._measure({})
        self._add(Row("(start)", None, start, "start"))
        while (found := self._next(best)) is not None:
            move, predicted = found
            values = self._after(move)
            try:
                measured = self._measure(values)
            except TrialFailed as failure:
                self._add(Row(move.text, predicted, None, f"failed: {failure}"))
                continue
            self._add(Row(move.text, predicted, measured, measured.verdict(best)))
            if measured.is_faster(best):
                best, self.result.values = measured, values
        if self.result.values:
            self._repeat(start, best)
        return self.result

    def _next(self, best: Measured) -> tuple[Move, float | None] | None:
        """Returns the most promising change that was not tried, those without a prediction last; None: none is left."""
        left: list[tuple[Move, float | None]] = []
        for move in self._moves_from(self.result.values):
            if frozenset(self._after(move).items()) in self._tried:
                continue
            predicted = self._predict(best, move)
            if predicted is not None and predicted < WORTHWHILE * best.rate:
                gain = round(predicted / best.rate - 1.0, 2) + 0.0  # no -0 %
                self.result.not_tried[move.text] = f"{gain:+.0%} at best: {_bounding_side(best)}"
            else:
                self.result.not_tried.pop(move.text, None)  # as it may have been, before another change
                left.append((move, predicted))
        if left and self._elapsed_s() + RESERVED * self._longest_s > self._budget_s:
            self.result.not_tried |= {move.text: "no time left" for move, _ in left}
            return None
        return max(left, key=lambda found: found[1] or 0.0, default=None)

    def _after(self, move: Move) -> dict[str, str | int]:
        """Returns the best values so far with those of a change, as far as they differ from the start."""
        values = {**self.result.values, **move.values}
        return {key: value for key, value in values.items() if self._start.get(key) != value}

    def _repeat(self, start: Measured, best: Measured) -> None:
        """Measures start and result once more, in turn; what was a passing disturbance is not kept."""
        again: list[Measured] = []
        for before, name, values in ((start, "(start)", {}), (best, "(result)", self.result.values)):
            if self._elapsed_s() + self._longest_s > self._budget_s:
                self.result.not_tried["a repetition"] = "no time left"
                return
            try:
                measured = self._measure(values)
            except TrialFailed as failure:
                self._add(Row(f"{name} again", None, None, f"failed: {failure}"))
                return
            again.append(Measured((*before.rates, *measured.rates)))
            verdict = "repeated" if name == "(start)" else again[1].verdict(again[0])
            self._add(Row(f"{name} again", None, measured, verdict))
        if not again[1].is_faster(again[0]):
            self.result.values = {}

    def _measure(self, values: Values) -> Measured:
        self._tried.add(frozenset(values.items()))
        begun_s = self._elapsed_s()
        try:
            return self._run_trial(values)
        finally:
            self._longest_s = max(self._longest_s, self._elapsed_s() - begun_s)

    def _add(self, row: Row) -> None:
        self.result.rows.append(row)
        self._report(row)


def _bounding_side(measured: Measured) -> str:
    """Returns what bounds a run, in the words of its verdict."""
    bottleneck = {} if measured.run is None else measured.run.summary["bottleneck"]
    phase = f" ({bottleneck['phase']})" if bottleneck.get("phase") else ""
    return f"{bottleneck['verdict']}{phase} bounds the run" if bottleneck else "the other side bounds the run"
