"""One evaluation of given weights, wherever it takes place: on rank 0's thread or in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from offpolicy.collect.evaluation import Watch, evaluate
from offpolicy.collect.post import Episode, Interval, overlap
from offpolicy.collect.post_queue import STOPPED, Done, PostConfig, PostQueue
from offpolicy.logger.record import Record
from offpolicy.nets.policy import flat_size, load_flat, make_policy
from offpolicy.timing.ledger import NullLedger, TimeAccount
from offpolicy.timing.phases import EvaluatorPhase
from offpolicy.timing.trace_writer import Mark, TraceLane
from offpolicy.training.episode_log import EpisodeLog
from offpolicy.training.worker_spec import WorkerSpec
from offpolicy.types import EvalResult, Float32

EPISODES_FILE = "eval_episodes.jsonl"
NS_PER_S = 1e9
HOOK_NAMES = ("hook", *Mark)  # what the records of its lane of the trace are called


class Played(NamedTuple):
    """What is kept of an episode until the next evaluation: no arrays."""

    numbers: Record  # of its line in the diary
    interval: Interval


class Examiner:
    """Plays the episodes of an evaluation, and hands each to the hook, if there is one, at its end."""

    def __init__(
        self,
        job: WorkerSpec,
        should_stop: Callable[[], bool],
        warn: Callable[[str], None],
        ledger: TimeAccount | None = None,
        trace: TraceLane | None = None,
    ) -> None:
        """`should_stop` is asked at every vector step; `warn` is told of the first failure of the hook."""
        self._job, self._should_stop, self._warn = job, should_stop, warn
        self._ledger, self._trace = ledger or NullLedger(), trace
        self._policy = make_policy(job.cfg.algo, job.spec).eval()
        self._played: dict[int, Played] = {}  # of this evaluation, by index
        self._posts: list[Interval] = []
        self._pauses: list[Interval] = []
        self.episodes, self.post_failures = 0, 0
        cfg = job.cfg
        self._queue: PostQueue | None = None
        self._diary: EpisodeLog | None = None
        if cfg.eval.hook is not None:
            self._diary = EpisodeLog(Path(job.run_dir) / EPISODES_FILE, job.start_step, warn)
            post = PostConfig(cfg.eval.hook, cfg.eval.post_queue, cfg.env.step_timeout_s)
            self._queue = PostQueue(post, should_stop, self._take_answer)

    @property
    def policy_size(self) -> int:
        """Numbers of the flat policy."""
        return flat_size(self._policy)

    def open(self) -> None:
        """Start the hook's worker. Raises `ConfigError` if the hook cannot be loaded."""
        if self._queue is not None:
            self._queue.open()

    def close(self) -> None:
        """End the hook's worker; what it was in the middle of is written down as stopped."""
        if self._queue is not None:
            self._queue.close()
        if self._diary is not None:
            self._diary.close()

    def examine(self, flat: Float32, env_steps: int, policy_version: int) -> EvalResult | None:
        """Evaluate the flat policy [P]; None when told to stop. Raises `EnvFailure`."""
        cfg, failures_before = self._job.cfg, self.post_failures
        self._played, self._posts, self._pauses = {}, [], []
        with self._ledger.phase(EvaluatorPhase.WEIGHT_APPLY):
            load_flat(self._policy, flat)
        watch = Watch(
            should_stop=self._should_stop,
            on_end=None if self._queue is None else self._hand_over,
            on_pause=self._pauses.append,
            env_steps=env_steps,
            policy_version=policy_version,
            ledger=self._ledger,
        )
        result = evaluate(self._policy, cfg.env, episodes=cfg.eval.episodes, seed=cfg.seed, watch=watch)
        if self._queue is not None:
            with self._ledger.phase(EvaluatorPhase.POST_BACKPRESSURE):
                self._queue.drain()
        if result is None:
            return None
        self.episodes += result.episodes
        if self._queue is None:
            return result
        overlapped = overlap([played.interval for played in self._played.values()], self._posts, self._pauses)
        return result._replace(overlap=overlapped, post_failures=self.post_failures - failures_before)

    def _hand_over(self, episode: Episode, interval: Interval) -> None:
        assert self._queue is not None
        self._played[episode.index] = Played(_numbers(episode, interval), interval)
        self._ledger.mark(Mark.EPISODE_ENDED, self._number(episode.index))
        self._queue.submit(episode)

    def _number(self, index: int) -> int:
        """Of an episode, among those of all evaluations of this process."""
        return self.episodes + index

    def _take_answer(self, done: Done) -> None:
        """Write the episode down, with what became of the hook; a failure costs nothing else."""
        numbers = self._played[done.episode_index].numbers
        if done.interval is not None:
            self._posts.append(done.interval)
            self._trace_hook(done.episode_index, done.interval)
        if done.error is not None and done.error != STOPPED:
            self.post_failures += 1
            self._tell_of_failure(numbers, done.error)
        assert self._diary is not None
        self._diary.append(numbers | _post_fields(done))

    def _trace_hook(self, index: int, interval: Interval) -> None:
        if self._trace is not None:
            self._trace.span(HOOK_NAMES.index("hook"), *interval)
            self._trace.mark(Mark.EPISODE_HOOKED, interval.start_ns, self._number(index))

    def _tell_of_failure(self, numbers: Record, error: str) -> None:
        """The first one in full: a hook that fails once fails often."""
        if self.post_failures > 1:
            return
        sys.stderr.write(f"{error.rstrip()}\n")  # of a child: it goes to train.log
        self._warn(
            f"eval.hook failed for episode {numbers['index']} of the evaluation at env step {numbers['env_steps']:,}:"
            f" {_cause(error)}; its return counts. Further failures are only counted: {EPISODES_FILE},"
            " eval/post_failures"
        )


def _numbers(episode: Episode, interval: Interval) -> Record:
    """The episode in the diary, on the machine's monotonic clock in seconds; what is not known is left out."""
    measured = {"ep_return": episode.ep_return, "success": episode.success, "measure": episode.measure}
    return {
        "env_steps": episode.env_steps,
        "policy_version": episode.policy_version,
        "index": episode.index,
        "ep_length": episode.length,
        **{name: value for name, value in measured.items() if np.isfinite(value)},
        "started_s": interval.start_ns / NS_PER_S,
        "ended_s": interval.end_ns / NS_PER_S,
    }


def _post_fields(done: Done) -> dict[str, float | str | None]:
    """What became of its hook."""
    return {
        "post_started_s": done.interval.start_ns / NS_PER_S if done.interval else None,
        "post_ended_s": done.interval.end_ns / NS_PER_S if done.interval else None,
        "post_error": _cause(done.error) if done.error else None,
    }


def _cause(error: str) -> str:
    return error.strip().splitlines()[-1]
