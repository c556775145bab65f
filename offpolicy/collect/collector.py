"""THE collector loop: wait for a grant, refresh, act, step, write; one ledger iteration per vector step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from offpolicy.collect.episodes import EpisodeTracker, pack_episodes
from offpolicy.collect.policy import CollectorPolicy
from offpolicy.collect.replay_writer import BadRowError, Writer
from offpolicy.collect.rollout_writer import RolloutWriter
from offpolicy.envs.env_adapter import VectorAdapter
from offpolicy.errors import EnvFailure, NumericsError
from offpolicy.processes.control_page import CollectorWord, ControlPage, HostWord, RankWord
from offpolicy.processes.handshake import CollectorGate, Turn
from offpolicy.processes.reports import Reports
from offpolicy.replay.ring import Ring
from offpolicy.seeding import env_seed
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import CollectorPhase
from offpolicy.timing.trace_writer import Mark
from offpolicy.types import CollectorTotals, Float32, StepOutcome


@dataclass(slots=True)
class Progress:
    """The collector's cumulative counters and where its environments stand."""

    obs: Float32  # [N, O] to act on next
    env_steps: int = 0
    vector_steps: int = 0
    policy_steps: int = 0
    policy_lag_sum: float = 0.0
    bad_rows: int = 0  # dropped since this process started


@dataclass(frozen=True, slots=True)
class CollectorParts:
    """The parts of a collector."""

    env: VectorAdapter
    policy: CollectorPolicy
    writer: Writer
    gate: CollectorGate
    reporter: CollectorReporter
    progress: Progress
    ledger: Ledger
    take_snapshot: Callable[[], OSError | None]  # returns what the disk refused
    renew_env: Callable[[EnvFailure], None]  # begins new episodes in new environments, or raises what it is given
    warn: Callable[[str], None]
    seed: int
    number: int  # of this collector, among those of all hosts
    max_bad_rows: int
    rollouts: RolloutWriter | None = None  # the writer again, for its counts; None where it writes replay rows


class CollectorReporter:
    """Publishes the cumulative report when asked, and every finished episode at once."""

    def __init__(  # noqa: PLR0913  # of whom it reports, and where
        self,
        control: ControlPage,
        index: int,
        reports: Reports[CollectorTotals],
        episodes: Ring,
        tracker: EpisodeTracker,
        *,
        start_steps: Sequence[int],
        num_hosts: int = 1,
    ) -> None:
        """`start_steps`: env steps of each collector of this host in the checkpoint that the run goes on from.

        One that still starts has announced nothing, and has done at least these.
        """
        self._control, self._reports, self._episodes = control, reports, episodes
        by_collector = enumerate(zip(control.collectors, start_steps, strict=True))
        self._others = [of_other for i, of_other in by_collector if i != index]
        self._num_hosts = num_hosts
        self.tracker = tracker
        self.num_finished = 0  # episodes that ended in the last vector step
        self.env_steps = 0  # of the run, at the last vector step
        self._answered = 0

    def record(self, outcome: StepOutcome, own_steps: int) -> None:
        """Appends the episodes that ended in one vector step, dated by the env steps of all collectors.

        Those of other hosts are not known here; their collectors do as many as those of this one.
        """
        others = sum(max(words[CollectorWord.ENV_STEPS], start) for words, start in self._others)
        on_this_host = own_steps + others
        self.env_steps = on_this_host * self._num_hosts
        finished = self.tracker.update(outcome, self.env_steps)
        self.num_finished = len(finished)
        if finished:
            self._episodes.append(pack_episodes(finished))

    def newest_version(self) -> int:
        """Returns the version of the newest weights."""
        return self._control.leader[RankWord.VERSION]

    def is_wanted(self) -> bool:
        """True if the supervisor has asked for a report since the last one."""
        return self._control.host[HostWord.REPORT_REQUEST] != self._answered

    def publish(self, parts: CollectorParts) -> None:
        """Publishes the cumulative report."""
        self._answered = self._control.host[HostWord.REPORT_REQUEST]
        progress, rollouts = parts.progress, parts.rollouts
        totals = CollectorTotals(
            account=parts.ledger.account(),
            env_steps=progress.env_steps,
            vector_steps=progress.vector_steps,
            policy_lag_sum=progress.policy_lag_sum,
            policy_steps=progress.policy_steps,
        )
        if rollouts is not None:
            totals = replace(totals, rollouts=rollouts.rollouts, rollouts_dropped=rollouts.dropped)
        self._reports.publish(totals)


def collect(parts: CollectorParts) -> None:
    """Steps the environments until it is time to exit; every nanosecond lands in one phase or in `other`."""
    try:
        while wait_turn(parts):
            step(parts)
            parts.ledger.close()
            if parts.reporter.is_wanted():
                parts.reporter.publish(parts)
    finally:
        parts.ledger.begin_cooldown()
        parts.reporter.publish(parts)


def wait_turn(parts: CollectorParts) -> bool:
    """Waits until the next step may be taken, saving snapshots meanwhile; False when it is time to exit."""
    phase, gate, writer, env_steps = parts.ledger.phase, parts.gate, parts.writer, parts.progress.env_steps

    def may_step(granted: int) -> bool:
        return writer.may_step(env_steps, granted)

    with phase(CollectorPhase.HANDSHAKE):
        gate.announce(env_steps, writer.handed_over(env_steps))
        turn = gate.turn(may_step)
    while turn is None or turn is Turn.SNAPSHOT:
        if turn is None:
            with phase(CollectorPhase.LEARNER_WAIT):
                turn = gate.wait_turn(may_step)
        else:
            with phase(CollectorPhase.SNAPSHOT):
                gate.answer_snapshot(parts.take_snapshot)
                turn = gate.turn(may_step)
    return turn is Turn.STEP


def step(parts: CollectorParts) -> None:
    """Takes one vector step: `progress.obs` moves from what was acted on to what is acted on next."""
    phase, policy, progress = parts.ledger.phase, parts.policy, parts.progress
    is_random = policy.is_random(progress.env_steps)
    if not is_random:
        parts.ledger.end_warmup()
        with phase(CollectorPhase.WEIGHT_APPLY):
            if parts.writer.wants_fresh_policy(policy.version) and policy.refresh():
                parts.ledger.mark(Mark.APPLIED, policy.version)
    with phase(CollectorPhase.ACTION_SELECT):
        output = policy.act(progress.obs, progress.env_steps)
    with phase(CollectorPhase.ENV_STEP):
        try:
            outcome = parts.env.step(output.action)
        except EnvFailure as error:
            parts.renew_env(error)
            parts.reporter.num_finished = 0  # no episode is reset in the next step
            return
    if parts.reporter.num_finished:  # episodes of the last step: they are reset in this one (NEXT_STEP)
        parts.ledger.tag(CollectorPhase.ENV_STEP)
    with phase(CollectorPhase.REPLAY_WRITE):
        try:
            progress.env_steps += parts.writer.write(progress.obs, output, outcome)
        except BadRowError as error:
            outcome = drop_bad_rows(parts, error, outcome)
            progress.env_steps += error.num_stored
        progress.vector_steps += 1
        if not is_random:
            progress.policy_steps += 1
            progress.policy_lag_sum += max(parts.reporter.newest_version() - policy.version, 0)
        parts.reporter.record(outcome, progress.env_steps)
        progress.obs = np.ascontiguousarray(outcome.next_obs)


def drop_bad_rows(parts: CollectorParts, error: BadRowError, outcome: StepOutcome) -> StepOutcome:
    """Resets the environments of bad transitions, or all that can only be reset together; returns the other rows.

    Raises `NumericsError` beyond `env.max_bad_rows`, and where an episode begins with NaN or Inf.
    """
    env, progress, tracker = parts.env, parts.progress, parts.reporter.tracker
    progress.bad_rows += len(error.envs)
    episode_step = int(tracker.ep_length[error.envs[0]])
    text = f"{error} at env step {progress.env_steps}, episode step {episode_step}, seed {parts.seed}"
    if progress.bad_rows > parts.max_bad_rows:
        raise NumericsError(text) from None
    parts.warn(f"{text}; dropped, {progress.bad_rows} of env.max_bad_rows={parts.max_bad_rows}")
    where = np.zeros(env.num_envs, np.bool_)
    where[list(error.envs) if env.can_reset_some else slice(None)] = True
    seed = env_seed(parts.seed, "bad_row", parts.number, progress.env_steps, progress.vector_steps)
    obs = env.reset_some(seed, range(env.num_envs), where) if env.can_reset_some else env.reset(seed)
    obs = np.where(where[:, None], obs, outcome.next_obs)
    require_finite(obs, parts.seed)
    tracker.ep_return[where], tracker.ep_length[where] = 0.0, 0
    parts.writer.abandon(np.flatnonzero(where).tolist())
    return outcome._replace(
        next_obs=obs,
        terminated=outcome.terminated & ~where,
        truncated=outcome.truncated & ~where,
        is_valid=outcome.is_valid & ~where,
    )


def require_finite(obs: Float32, seed: int) -> None:
    """Raises `NumericsError` for an episode that begins with NaN or Inf. obs: [N, O]."""
    if len(bad := np.flatnonzero(~np.isfinite(obs).all(axis=1))):
        raise NumericsError(f"NaN or Inf in the first observation of environment {bad[0]}, seed {seed}")
