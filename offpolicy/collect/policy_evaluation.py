"""One evaluation of given weights, on rank 0's thread or in the evaluator process, with its hook and episode log."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from offpolicy.algos.registry import make_policy
from offpolicy.checkpoint.formats import Array
from offpolicy.collect.episode_hook import STOPPED, EpisodeHook, HookConfig, HookResult, Interval
from offpolicy.collect.evaluation import EpisodeCallbacks, evaluate
from offpolicy.collect.policy import BadEpisodeError
from offpolicy.collect.post import Episode
from offpolicy.collect.record_log import Record, RecordLog
from offpolicy.config.schema import RunConfig
from offpolicy.nets.policy import flat_size, load_flat
from offpolicy.timing.ledger import Ledger, NullLedger
from offpolicy.timing.phases import EvaluatorPhase
from offpolicy.timing.trace_reader import Overlap, Times, total_ns, union
from offpolicy.timing.trace_writer import Mark, TraceTrack
from offpolicy.types import EvalResult, Float32, SpaceSpec

EPISODES_FILE = "eval_episodes.jsonl"
NS_PER_S = 1e9
HOOK_NAMES = ("hook", *Mark)  # names of the records of the hook's trace track


@dataclass(frozen=True, slots=True)
class EvaluationContext:
    """The services of the process that evaluates."""

    should_stop: Callable[[], bool]  # asked as that of `EpisodeCallbacks`
    warn: Callable[[str], None]  # gets the first failure of the hook, and of writing the episode log
    ledger: Ledger = field(default_factory=NullLedger)
    hook_trace: TraceTrack | None = None
    close_failed: Callable[[Callable[[], object]], object] = lambda close: close()  # as in `EpisodeCallbacks`


class PolicyEvaluation:
    """Runs the episodes of an evaluation and passes each, at its end, to the hook, if there is one."""

    def __init__(
        self, cfg: RunConfig, spec: SpaceSpec, run_dir: Path, kept_step: int, context: EvaluationContext
    ) -> None:
        """`kept_step`: env steps up to which evaluations stay recorded: later ones are made again."""
        self._cfg, self._context = cfg, context
        self._policy = make_policy(cfg.algo, spec).eval()
        # These four belong to the running evaluation. No arrays of its episodes are kept.
        self._records: dict[int, Record] = {}  # lines of the episode log, by the episode's index
        self._rollouts: list[Interval] = []
        self._hook_runs: list[Interval] = []
        self._pauses: list[Interval] = []
        self.episodes, self.post_failures = 0, 0  # in all evaluations
        self._hook: EpisodeHook | None = None
        self._log: RecordLog | None = None
        if cfg.eval.hook is not None:
            self._log = RecordLog(run_dir / EPISODES_FILE, kept_step, context.warn)
            hook = HookConfig(cfg.eval.hook, cfg.eval.post_queue, cfg.env.step_timeout_s)
            self._hook = EpisodeHook(hook, context.should_stop, self._finish_episode)

    @property
    def policy_size(self) -> int:
        """Numbers of the flat policy."""
        return flat_size(self._policy)

    def tensors(self) -> dict[str, Array]:
        """Returns the policy that was evaluated last, by the names in a checkpoint's learner: views."""
        return {f"policy.{name}": tensor.numpy() for name, tensor in self._policy.state_dict().items()}

    def open(self) -> None:
        """Starts the hook's worker. Raises `ConfigError` if the hook cannot be loaded."""
        if self._hook is not None:
            self._hook.open()

    def close(self) -> None:
        """Ends the hook's worker; the episode it is working on is logged as stopped."""
        if self._hook is not None:
            self._hook.close()
        if self._log is not None:
            self._log.close()

    def evaluate(self, flat: Float32, env_steps: int, policy_version: int) -> EvalResult | None:
        """Evaluates the flat policy [P]; None if stopped. Raises `EnvFailure`, `NumericsError`.

        Where the run skips bad transitions, an evaluation in which an environment gave NaN or Inf has the mean NaN.
        """
        cfg, context, failures_before = self._cfg, self._context, self.post_failures
        self._records, self._rollouts, self._hook_runs, self._pauses = {}, [], [], []
        with context.ledger.phase(EvaluatorPhase.WEIGHT_APPLY):
            load_flat(self._policy, flat)
        callbacks = EpisodeCallbacks(
            should_stop=context.should_stop,
            on_end=None if self._hook is None else self._start_hook,
            on_pause=self._pauses.append,
            env_steps=env_steps,
            policy_version=policy_version,
            ledger=context.ledger,
            close_failed=context.close_failed,
        )
        try:
            result = evaluate(self._policy, cfg.env, episodes=cfg.eval.episodes, seed=cfg.seed, callbacks=callbacks)
        except BadEpisodeError as error:
            if cfg.env.max_bad_rows == 0:
                raise
            context.warn(f"{error}; env.max_bad_rows={cfg.env.max_bad_rows} lets the run go on without a result")
            result = EvalResult(env_steps, math.nan, math.nan, math.nan, len(self._records), policy_version)
        if self._hook is not None:
            with context.ledger.phase(EvaluatorPhase.POST_BACKPRESSURE):
                self._hook.drain()
        if result is None:
            return None
        self.episodes += result.episodes
        if self._hook is None:
            return result
        overlapped = overlap(self._rollouts, self._hook_runs, self._pauses)
        return result._replace(overlap=overlapped, post_failures=self.post_failures - failures_before)

    def _start_hook(self, episode: Episode, interval: Interval) -> None:
        assert self._hook is not None
        measured = {"ep_return": episode.ep_return, "success": episode.success, "measure": episode.measure}
        self._records[episode.index] = {
            "env_steps": episode.env_steps,
            "policy_version": episode.policy_version,
            "index": episode.index,
            "ep_length": episode.length,
            **{name: value for name, value in measured.items() if np.isfinite(value)},
            "started_s": interval.start_ns / NS_PER_S,  # of the monotonic clock, as all times of a line
            "ended_s": interval.end_ns / NS_PER_S,
        }
        self._rollouts.append(interval)
        self._context.ledger.mark(Mark.EPISODE_ENDED, self.episodes + episode.index)
        self._hook.submit(episode)

    def _finish_episode(self, result: HookResult) -> None:
        """Logs an episode and the result of its hook; a failure costs nothing else."""
        record, trace = self._records[result.episode_index], self._context.hook_trace
        if result.interval is not None:
            self._hook_runs.append(result.interval)
            if trace is not None:
                trace.span(HOOK_NAMES.index("hook"), *result.interval)
                trace.mark(Mark.EPISODE_HOOKED, result.interval.start_ns, self.episodes + result.episode_index)
        if result.error is not None and result.error != STOPPED:
            self.post_failures += 1
            if self.post_failures == 1:  # a hook that fails once fails often
                sys.stderr.write(f"{result.error.rstrip()}\n")  # a child's stderr goes to train.log
                self._context.warn(
                    f"eval.hook failed for episode {record['index']} of the evaluation at env step"
                    f" {record['env_steps']:,}: {_last_line(result.error)}; its return counts. Further failures are"
                    f" only counted: {EPISODES_FILE}, eval/post_failures"
                )
        assert self._log is not None
        self._log.append(
            {
                **record,
                "post_started_s": result.interval.start_ns / NS_PER_S if result.interval else None,
                "post_ended_s": result.interval.end_ns / NS_PER_S if result.interval else None,
                "post_error": _last_line(result.error) if result.error else None,
            }
        )


def _last_line(error: str) -> str:
    return error.strip().splitlines()[-1]


def overlap(
    rollouts: Sequence[Interval], hook_runs: Sequence[Interval], pauses: Sequence[Interval] = ()
) -> float | None:
    """Returns the share of the shorter of the two kinds of work that was done during the other, 0 to 1.

    `(busy_rollouts + busy_hook - makespan) / min(busy_rollouts, busy_hook)`, where the makespan is the time in which at
    least one of them was busy; None where one of the two has done nothing. No episode advanced during the `pauses`,
    which do not overlap.
    """
    if not rollouts or not hook_runs:
        return None
    begin = min(each.start_ns for each in (*rollouts, *hook_runs))
    end = max(each.end_ns for each in (*rollouts, *hook_runs))
    edges = [begin, *(edge for pause in sorted(pauses) for edge in pause), end]
    between = [union([_times(rollouts)], window) for window in zip(edges[::2], edges[1::2], strict=True)]
    played, hooked = union(between, (begin, end)), union([_times(hook_runs)], (begin, end))
    both = Overlap(total_ns(played), total_ns(hooked), total_ns(union([played, hooked], (begin, end))))
    return both.ratio if min(both.one_ns, both.other_ns) else None


def _times(intervals: Sequence[Interval]) -> tuple[Times, Times]:
    starts, stops = np.array(intervals, np.int64).T
    return starts, stops
