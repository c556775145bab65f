"""The settings that `offpolicy tune` may change, the changes of one step, and the rates of a trial.

Nothing here changes what is learnt per update.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from offpolicy.analysis.explain import FinishedRun
from offpolicy.config.parsing import is_within
from offpolicy.config.schema import RunConfig
from offpolicy.envs.vectorization import GAIN, TOGETHER, batch_cost, is_batched_task
from offpolicy.timing.phases import CollectorPhase, LearnerPhase
from offpolicy.timing.what_if import ONE_MORE_COLLECTOR, PER_UPDATE

WORTHWHILE = 1.03  # ratio to the best rate so far below which a change is no gain, predicted or measured
BUSY = 0.10  # share of the cores that other programs used above which a trial is busy, and by which trials may differ
FASTER = "faster"
MODES = ("alternate", "overlap")
KEYS = {  # every key that may be changed, and what the change means beyond the speed
    "collect.mode": "overlap: the collector acts with weights that are one update older",
    "env.num_envs": "changes how many environments collect; the updates per env step stay",
    "env.vectorization": "",
    "collect.num_collectors": "changes how many environments collect; the updates per env step stay",
    "replay.source": "prefetch: rows are chosen one iteration earlier; resident: by another random stream",
    "threads.learner": "",
    "threads.collector": "",
    "eval.beside": "",
}
OF_ROLLOUTS = ("env.num_envs", "collect.num_collectors")  # they decide the rows of a batch of rollouts
OF_SOURCES = ("replay.slots", "replay.prefetch", "replay.newest", "replay.device_share")  # read by one source alone
Values = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Machine:
    """The parts of the machine that decide what can be faster."""

    num_cores: int
    learns_on_gpu: bool  # the run's device is one that torch can use


@dataclass(frozen=True, slots=True)
class Measured:
    """The rates of a trial in its report intervals, in env steps per second."""

    rates: tuple[float, ...]
    busy: float = 0.0  # share of the cores that other programs used meanwhile
    threads: int | None = None  # of the learner, as they ran
    episode_steps: float | None = None  # env steps of a training episode
    run: FinishedRun | None = None  # None: it has no account to predict from
    is_settled: bool = True  # False: the run still tried threads or modes, the slower ones too

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

    def verdict(self, other: Measured) -> str:
        """Returns how the rate compares with another one; noise: the difference is within the spread of the two.

        There is none where other programs used more of the cores in one trial than in the other, and none where one
        of them still tried slower threads and modes.
        """
        if self.is_settled != other.is_settled or abs(self.busy - other.busy) > BUSY:
            return "not judged"
        if self.quartiles[0] > other.quartiles[1] and self.rate > WORTHWHILE * other.rate:
            return FASTER
        return "slower" if self.quartiles[1] < other.quartiles[0] else "noise"

    def is_faster(self, other: Measured) -> bool:
        """True if the rate is higher by more than the spread of the two and by more than `WORTHWHILE`."""
        return self.verdict(other) == FASTER


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


def moves(cfg: RunConfig, held: Mapping[str, str], machine: Machine, learner_threads: int) -> list[Move]:
    """Returns the changes of one step from a configuration that touch none of the keys in `held`.

    `learner_threads`: those with which each rank of it begins.
    """
    found = (*_mode(cfg), *_environments(cfg, machine), *_collectors(cfg, machine), *_source(cfg, machine))
    every = (*found, *_threads(cfg, machine, learner_threads))
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
    if any(key in OF_SOURCES for key in typed):
        held.setdefault("replay.source", "an option that another source does not read was given")
    if cfg.runner.name == "double_buffer":
        held.setdefault("replay.source", "runner=double_buffer is that of prefetch")
    if cfg.eval.every == 0 or cfg.eval.episodes == 0:
        held.setdefault("eval.beside", "there is no evaluation while it trains")
    if cfg.runner.world_size > 1:
        held.setdefault("collect.num_collectors", "several ranks share the collectors of their host")
    elif cfg.threads.learner == "auto":
        held.setdefault("threads.learner", "auto: each run tries the numbers, on a CPU")
    return held


def _mode(cfg: RunConfig) -> Iterator[Move]:
    for mode in MODES:
        if mode != cfg.collect_mode:
            yield Move({"collect.mode": mode}, what_if=f"collect.mode={mode}")


def _environments(cfg: RunConfig, machine: Machine) -> Iterator[Move]:
    """Yields twice the environments, and other ways to step them."""
    env, twice = cfg.env, 2 * cfg.env.num_envs
    # Of an env step, twice the environments halve what is done once per vector step and once per iteration.
    halved: dict[str, float] = dict.fromkeys((*CollectorPhase, *LearnerPhase), 0.5)
    halved |= dict.fromkeys(PER_UPDATE, 1.0)
    halved[CollectorPhase.ENV_STEP] = _twice_factor(cfg, machine)
    yield Move({"env.num_envs": twice}, factors=halved)
    if env.vectorization in ("sync", "auto"):
        for num_envs, factors in ((env.num_envs, {}), (twice, halved)):
            if num_envs > 1:
                values = {"env.num_envs": num_envs} if num_envs != env.num_envs else {}
                # Side by side, at best: where they wait for something, or have a core each.
                together = {**factors, CollectorPhase.ENV_STEP: 1.0 / num_envs}
                yield Move({**values, "env.vectorization": "async"}, factors=together)
    elif env.vectorization == "async" and env.num_envs > 1:
        yield Move({"env.vectorization": "sync"})
    if env.vectorization not in TOGETHER and env.num_envs > 1:
        yield Move({"env.vectorization": "mujoco"}, factors={CollectorPhase.ENV_STEP: _batch_factor(cfg, machine)})


def _twice_factor(cfg: RunConfig, machine: Machine) -> float:
    """Returns the cost of an env step with twice the environments over that with those of now, at best."""
    env = cfg.env
    if env.vectorization in ("sync", "auto"):  # one after another
        return 1.0
    if env.vectorization == "mujoco" and is_batched_task(env):
        threads = _batch_threads(cfg, machine)
        return batch_cost(threads, 2 * env.num_envs) / batch_cost(threads, env.num_envs)
    return 0.5  # side by side: as long as before at best, where they wait for something or have a core each


def _batch_factor(cfg: RunConfig, machine: Machine) -> float:
    """Returns the cost of an env step in a batch over that one after another, at best."""
    return GAIN * batch_cost(_batch_threads(cfg, machine), cfg.env.num_envs)


def _batch_threads(cfg: RunConfig, machine: Machine) -> int:
    shared = max(machine.num_cores // cfg.collect.num_collectors, 1)
    return cfg.threads.collector if cfg.threads.collector != "auto" else shared if cfg.takes_turns else 1


def _collectors(cfg: RunConfig, machine: Machine) -> Iterator[Move]:
    if cfg.collect.num_collectors < machine.num_cores:
        yield Move({"collect.num_collectors": cfg.collect.num_collectors + 1}, what_if=ONE_MORE_COLLECTOR)


def _source(cfg: RunConfig, machine: Machine) -> Iterator[Move]:
    """Yields the other sources of batches: they take the packing, or on a GPU the copy, off the learner's thread."""
    now = _source_now(cfg, machine)
    hidden: dict[str, float] = {LearnerPhase.REPLAY_SAMPLE: 0.0, LearnerPhase.H2D: 0.0}
    for source in ("direct", "prefetch", *(("resident",) if machine.learns_on_gpu else ())):
        if source != now:
            yield Move({"replay.source": source}, factors=hidden if now == "direct" else None)


def _source_now(cfg: RunConfig, machine: Machine) -> str:
    automatic = "prefetch" if cfg.runner.name == "double_buffer" else "resident" if machine.learns_on_gpu else "direct"
    return automatic if cfg.replay.source == "auto" else cfg.replay.source


def _threads(cfg: RunConfig, machine: Machine, learner: int) -> Iterator[Move]:
    """Yields other numbers of threads, as far as a run does not try them itself."""
    collector = _collector_threads(cfg)
    if learner > 1:
        yield Move({"threads.learner": learner // 2})
    if 2 * learner * cfg.runner.world_size <= machine.num_cores:
        yield Move({"threads.learner": 2 * learner}, factors={LearnerPhase.TRAIN: 0.5})
    if 2 * collector <= machine.num_cores:
        yield Move({"threads.collector": 2 * collector}, factors={CollectorPhase.ACTION_SELECT: 0.5})


def _collector_threads(cfg: RunConfig) -> int:
    return 1 if cfg.threads.collector == "auto" else cfg.threads.collector


def start_values(cfg: RunConfig, machine: Machine, learner_threads: int) -> Values:
    """Returns the values that a change starts from: those that stand for `null` and `auto`, where a value does.

    `learner_threads`: those with which each rank begins.
    """
    return {
        "collect.mode": cfg.collect_mode,
        "env.num_envs": cfg.env.num_envs,
        "env.vectorization": "sync" if cfg.env.vectorization == "auto" else cfg.env.vectorization,
        "collect.num_collectors": cfg.collect.num_collectors,
        "replay.source": _source_now(cfg, machine),
        "threads.learner": learner_threads,
        "threads.collector": _collector_threads(cfg),
    }
