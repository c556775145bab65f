"""`collect.hook=module:function`: a user's function, called with each finished training episode, beside collecting.

Each collector has one worker process for it (`EpisodeHook`) and hands it whole episodes. The collector waits only while
`collect.post_queue` episodes wait already; that time is its phase `post_backpressure`.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from itertools import islice

import numpy as np

from offpolicy.collect.episode_hook import STOPPED, EpisodeHook, HookConfig, HookResult, Interval
from offpolicy.collect.post import Episode
from offpolicy.timing.clock import Clock, MonotonicClock
from offpolicy.types import Bool, Float32, Float64, HookTotals, PolicyOutput, StepOutcome


class EpisodeSteps:
    """The steps of the running episodes of N environments: vector steps, cut into episodes where these end.

    `is_whole` [N]: False where the running episode began before this process, which cannot hand it over. One of more
    than `longest` steps is not kept either: it might never end.
    """

    def __init__(self, is_whole: Bool, longest: int) -> None:
        self._is_whole, self.longest = is_whole.copy(), longest
        self.num_too_long = 0  # episodes that were not kept
        self._begun = np.zeros(len(is_whole), np.int64)  # [N] number of the first step of the running episode
        self._first = 0  # number of the oldest step that is kept
        self._steps: deque[tuple[Float32, Float32, Float64]] = deque()  # obs [N, O], action [N, A], reward [N]

    def add(self, obs: Float32, action: Float32, outcome: StepOutcome) -> list[int]:
        """Adds a vector step; returns the environments in which a whole episode ended with it. [N, O], [N, A]."""
        self._steps.append((obs.copy(), action.copy(), np.array(outcome.reward, np.float64)))
        end = self._first + len(self._steps)
        begins = ~outcome.is_valid  # a row of autoreset: the next one is the first step of an episode
        self._begun[begins], self._is_whole[begins] = end, True
        is_too_long = self._is_whole & (end - self._begun > self.longest)
        self.num_too_long += int(is_too_long.sum())
        self._is_whole &= ~is_too_long
        oldest = self._begun.min(where=self._is_whole, initial=end)
        while self._first < oldest:
            self._steps.popleft()
            self._first += 1
        is_over = (outcome.terminated | outcome.truncated) & outcome.is_valid & self._is_whole
        found: list[int] = np.flatnonzero(is_over).tolist()
        return found

    def episode(self, env: int, outcome: StepOutcome, index: int, env_steps: int, policy_version: int) -> Episode:
        """Returns the episode that has just ended in `env` with `outcome`."""
        steps = list(islice(self._steps, int(self._begun[env]) - self._first, None))
        reward = np.array([step[2][env] for step in steps])
        return Episode(
            index=index,
            env_steps=env_steps,
            policy_version=policy_version,
            ep_return=float(reward.sum()),
            length=len(steps),
            success=float(outcome.success[env]),
            measure=float(outcome.measure[env]),
            terminated=bool(outcome.terminated[env]),
            truncated=bool(outcome.truncated[env]),
            obs=np.stack([*(step[0][env] for step in steps), outcome.next_obs[env]], dtype=np.float32),
            action=np.stack([step[1][env] for step in steps], dtype=np.float32),
            reward=reward,
        )


class HiddenWork:
    """How much of the hook's work was done while the collector did not wait for it. All in ns of one clock."""

    def __init__(self) -> None:
        self.busy_ns, self.hidden_ns = 0, 0
        self._waits: deque[Interval] = deque()  # those in which a later run of the hook may lie
        self._waiting_since: int | None = None

    def begin_wait(self, now_ns: int) -> None:
        """Begins a wait of the collector for the hook."""
        self._waiting_since = now_ns

    def end_wait(self, now_ns: int) -> None:
        """Ends it."""
        assert self._waiting_since is not None
        self._waits.append(Interval(self._waiting_since, now_ns))
        self._waiting_since = None

    def add_run(self, run: Interval) -> None:
        """Counts a run of the hook that has ended; runs come in their order."""
        waits = [*self._waits, *([] if self._waiting_since is None else [Interval(self._waiting_since, run.end_ns)])]
        waited = sum(max(0, min(wait.end_ns, run.end_ns) - max(wait.start_ns, run.start_ns)) for wait in waits)
        self.busy_ns += run.end_ns - run.start_ns
        self.hidden_ns += run.end_ns - run.start_ns - waited
        while self._waits and self._waits[0].end_ns <= run.end_ns:
            self._waits.popleft()

    def drop_waits(self) -> None:
        """Forgets the waits so far, where no run of the hook is left that may lie in them."""
        self._waits.clear()


class TrainingHook:
    """Hands the finished episodes of one collector to its hook, and counts what comes back.

    `warn` gets the first episode that was too long for `steps`, and the first failure. Create it on the main thread.
    """

    def __init__(
        self,
        cfg: HookConfig,
        steps: EpisodeSteps,
        should_stop: Callable[[], bool],
        warn: Callable[[str], None],
        clock: Clock | None = None,
        *,
        is_discrete: bool,
    ) -> None:
        self._steps, self._work = steps, HiddenWork()
        self._hook = EpisodeHook(cfg, should_stop, self._finish)
        self._is_discrete = is_discrete
        self._warn, self._clock = warn, clock or MonotonicClock()
        self._handed_over, self._done, self._failures = 0, 0, 0
        self._has_left_out = False  # an episode that was too long
        self._env_steps: dict[int, int] = {}  # of the episodes that are on their way, by index

    def open(self) -> None:
        """Starts the worker. Raises `ConfigError` if it cannot load the hook."""
        self._hook.open()

    def close(self) -> None:
        """Ends the worker, without waiting for the episodes on their way."""
        self._hook.close()

    def add(self, obs: Float32, output: PolicyOutput, outcome: StepOutcome, env_steps: int) -> None:
        """Adds a vector step and hands over the episodes that ended in it. obs: [N, O] acted on."""
        action = output.action if self._is_discrete else np.clip(output.action, -1.0, 1.0)  # as the environment gets it
        ended = self._steps.add(obs, action, outcome)
        if self._steps.num_too_long and not self._has_left_out:
            self._has_left_out = True
            self._warn(
                f"collect.hook: a training episode has more than {self._steps.longest:,} steps and is not handed over,"
                " nor will others be; env.kwargs.max_episode_steps=N ends episodes earlier, or allows longer ones"
            )
        for env in ended:
            episode = self._steps.episode(env, outcome, self._handed_over, env_steps, output.version)
            self._env_steps[episode.index] = env_steps
            self._handed_over += 1
            self._work.begin_wait(self._clock.now_ns())
            self._hook.submit(episode)
            self._work.end_wait(self._clock.now_ns())

    def totals(self) -> HookTotals:
        """Returns the cumulative totals, those of the results that are there included."""
        self._hook.poll()
        return HookTotals(self._done, self._failures, self._work.busy_ns, self._work.hidden_ns)

    def _finish(self, result: HookResult) -> None:
        env_steps = self._env_steps.pop(result.episode_index)
        if result.error == STOPPED:
            return
        self._done += 1
        if result.interval is not None:
            self._work.add_run(result.interval)
        else:  # its worker is gone, with all that it was given
            self._work.drop_waits()
        if result.error is not None:
            self._failures += 1
            if self._failures == 1:  # a hook that fails once fails often
                sys.stderr.write(f"{result.error.rstrip()}\n")  # a child's stderr goes to train.log
                self._warn(
                    f"collect.hook failed for the training episode that ended at env step {env_steps:,}:"
                    f" {result.error.strip().splitlines()[-1]}; training goes on. Further failures are only counted:"
                    " collect/post_failures"
                )
