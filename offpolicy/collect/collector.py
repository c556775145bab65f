"""THE collector loop: wait for a grant, refresh, act, step, write; one ledger iteration per vector step."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offpolicy.collect.policy import CollectorPolicy
from offpolicy.collect.replay_writer import BadRowError, Writer
from offpolicy.config.schema import RunConfig
from offpolicy.envs.env_adapter import VectorAdapter
from offpolicy.errors import EnvFailure, EnvWorkerKilled, NumericsError
from offpolicy.processes.control_page import CollectorWord, ControlPage, HostWord, RankWord, Turn, Words
from offpolicy.processes.deaths import Restarts
from offpolicy.processes.handshake import POLL_S, wake
from offpolicy.processes.reports import Reports
from offpolicy.processes.shared_memory import WakeEvent
from offpolicy.replay.ring import Ring
from offpolicy.seeding import env_seed
from offpolicy.timing.clock import Stopwatch
from offpolicy.timing.ledger import Ledger
from offpolicy.timing.phases import CollectorPhase
from offpolicy.timing.trace_writer import Mark
from offpolicy.types import Bool, CollectorTotals, StepOutcome

STANDING = ("obs", "ep_return", "ep_length")  # where environments and episodes stand


@dataclass(slots=True)
class Collector:
    """A collector: its parts, its cumulative counters, and where its environments and their episodes stand."""

    cfg: RunConfig
    index: int  # on this host
    number: int  # among the collectors of all hosts: it names the random streams and the environments
    num_hosts: int
    env: VectorAdapter
    policy: CollectorPolicy
    writer: Writer
    control: ControlPage
    wake_event: WakeEvent
    to_wake: Sequence[WakeEvent]  # of all that may be waiting for its rows
    reports: Reports[CollectorTotals]
    episodes: Ring  # of those that have ended, with the columns of `EpisodeRecord`
    ledger: Ledger
    send: Callable[..., None]  # a message, `send(kind, **fields)`, to the supervisor
    snapshot_dir: Path
    take_snapshot: Callable[[Collector], OSError | None]  # writes there; returns what the disk refused
    start_steps: int = 0  # of each collector in the checkpoint that the run goes on from
    words: Words = field(init=False)  # its own of the control page
    obs: Any = field(init=False)  # [N, O] float32 to act on next: an array, or a tensor in a `DeviceCollector`
    ep_return: Any = field(init=False)  # [N] float64, raw, of the running episodes
    ep_length: Any = field(init=False)  # [N] int64
    num_finished: int = 0  # episodes that ended in the last vector step
    env_steps: int = 0
    vector_steps: int = 0
    policy_steps: int = 0
    policy_lag_sum: float = 0.0
    bad_rows: int = 0  # dropped since this process started
    log: dict[str, tuple[float, int]] = field(default_factory=dict)  # sum and count of what the environments log
    has_warned: bool = False  # True: of environments whose state cannot be saved
    handed_over: int = -1  # rows, or rollouts, that the learner had got when it was last woken
    answered: int = 0  # the newest request for a report that was answered
    restarts: Restarts = field(init=False)  # of the environments

    def __post_init__(self) -> None:
        self.words = self.control.collectors[self.index]
        self.ep_return, self.ep_length = np.zeros(self.env.num_envs), np.zeros(self.env.num_envs, np.int64)
        self.restarts = Restarts(self.cfg.runner.max_restarts, Stopwatch().elapsed_s)

    def run(self) -> None:
        """Steps the environments until it is time to exit; every nanosecond lands in one phase or in `other`."""
        try:
            while self.wait_turn():
                self.step()
                self.ledger.close()
                if self.must_report():
                    self.report()
        finally:
            self.ledger.begin_cooldown()
            self.report()

    def take_turn(self) -> bool:
        """Takes the next step, or the snapshot that is asked for; False if neither may be: for a learner's process."""
        turn = self.turn()
        if turn is Turn.STEP:
            self.words[CollectorWord.IS_INSIDE] = 1
            self.step()
            self.words[CollectorWord.IS_INSIDE] = 0
            self.announce()
            self.ledger.close()
        elif turn is Turn.SNAPSHOT:
            with self.ledger.phase(CollectorPhase.SNAPSHOT):
                self.answer_snapshot()
        if self.must_report():
            self.report()
        return turn in (Turn.STEP, Turn.SNAPSHOT)

    def turn(self) -> Turn | None:
        """Returns what is to be done next; None if there is nothing yet."""
        return self.control.turn(self.index, lambda granted: self.writer.may_step(self.env_steps, granted))

    def wait_turn(self) -> bool:
        """Waits until the next step may be taken, saving snapshots meanwhile; False when it is time to exit."""
        phase, words = self.ledger.phase, self.words
        with phase(CollectorPhase.HANDSHAKE):
            self.announce()
            turn = self.turn()
        while turn is None or turn is Turn.SNAPSHOT:
            if turn is None:
                with phase(CollectorPhase.LEARNER_WAIT):
                    words[CollectorWord.IS_WAITING] = 1
                    self.wake_event.wait(POLL_S)
                    words[CollectorWord.IS_WAITING] = 0
                    words[CollectorWord.PROGRESS] += 1
                    turn = self.turn()
            else:
                with phase(CollectorPhase.SNAPSHOT):
                    self.answer_snapshot()
                    turn = self.turn()
        return turn is Turn.STEP

    def announce(self) -> None:
        """Announces the env steps; wakes the others if the learner has got more of them."""
        self.words[CollectorWord.ENV_STEPS] = self.env_steps
        self.words[CollectorWord.PROGRESS] += 1
        handed_over = self.writer.handed_over(self.env_steps)
        if handed_over != self.handed_over:
            self.handed_over = handed_over
            wake(self.to_wake)

    def answer_snapshot(self) -> None:
        """Takes the requested snapshot; announces that it is on disk, or what the disk refused."""
        self.words[CollectorWord.IS_SAVING] = 1
        self.words[CollectorWord.PROGRESS] += 1
        error = self.take_snapshot(self)
        self.words[CollectorWord.IS_SAVING] = 0
        self.words[CollectorWord.PROGRESS] += 1
        self.words[CollectorWord.SNAPSHOT_ERRNO] = (error.errno or errno.EIO) if error else 0
        self.words[CollectorWord.SNAPSHOT_DONE] = self.control.leader[RankWord.SNAPSHOT_REQUEST]
        wake(self.to_wake)

    def step(self) -> None:
        """Takes one vector step: `obs` moves from what was acted on to what is acted on next."""
        phase, policy = self.ledger.phase, self.policy
        is_random = policy.is_random(self.env_steps)
        if not is_random:
            self.ledger.end_warmup()
            with phase(CollectorPhase.WEIGHT_APPLY):
                if self.writer.wants_fresh_policy(policy.version) and policy.refresh():
                    self.ledger.mark(Mark.APPLIED, policy.version)
        with phase(CollectorPhase.ACTION_SELECT):
            output = policy.act(self.obs, self.env_steps)
        with phase(CollectorPhase.ENV_STEP):
            try:
                outcome = self.env.step(output.action)
            except EnvFailure as error:
                self.renew_env(error)
                self.num_finished = 0  # no episode is reset in the next step
                return
        if self.num_finished:  # episodes of the last step: they are reset in this one (NEXT_STEP)
            self.ledger.tag(CollectorPhase.ENV_STEP)
        with phase(CollectorPhase.REPLAY_WRITE):
            try:
                self.env_steps += self.writer.write(self.obs, output, outcome)
            except BadRowError as error:
                outcome = self.drop_bad_rows(error, outcome)
                self.env_steps += error.num_stored
            self.vector_steps += 1
            if not is_random:
                self.policy_steps += 1
                self.policy_lag_sum += max(self.control.leader[RankWord.VERSION] - policy.version, 0)
            self.record_episodes(outcome)
            self.obs = outcome.obs_to_act_on

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns where environments and episodes stand, for a snapshot."""
        return {name: getattr(self, name) for name in STANDING}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continues from what `arrays` returned."""
        for name in STANDING:
            setattr(self, name, arrays[name].copy())

    def record_episodes(self, outcome: StepOutcome) -> None:
        """Adds a vector step to the running episodes, and publishes those that ended in it with their raw returns."""
        self.ep_return += np.where(outcome.is_valid, outcome.reward, 0.0)
        self.ep_length += outcome.is_valid
        self.add_log(outcome.log.items())
        ended = np.flatnonzero((outcome.terminated | outcome.truncated) & outcome.is_valid)
        self.num_finished = len(ended)
        if self.num_finished:
            columns = [
                np.full(len(ended), self.run_steps()),
                self.number * self.env.num_envs + ended,
                self.ep_return[ended],
                self.ep_length[ended],
                outcome.terminated[ended],
                outcome.truncated[ended],
                outcome.success[ended],
            ]
            self.episodes.append(np.stack(columns, axis=1))
            self.ep_return[ended], self.ep_length[ended] = 0.0, 0

    def add_log(self, numbers: Iterable[tuple[str, float]]) -> None:
        """Adds what the environments log to the sums that reports have."""
        for name, value in numbers:
            if math.isfinite(value):
                total, count = self.log.get(name, (0.0, 0))
                self.log[name] = total + value, count + 1

    def run_steps(self) -> int:
        """Returns the env steps of all collectors.

        One of this host that still starts has announced nothing, and has done at least those of the checkpoint. The
        collectors of other hosts are not known here; they do as many as those of this one.
        """
        others = [words for index, words in enumerate(self.control.collectors) if index != self.index]
        own_host = self.env_steps + sum(max(words[CollectorWord.ENV_STEPS], self.start_steps) for words in others)
        return self.num_hosts * own_host

    def must_report(self) -> bool:
        """True if the supervisor has asked for a report since the last one."""
        return self.control.host[HostWord.REPORT_REQUEST] != self.answered

    def report(self) -> None:
        """Publishes the cumulative report."""
        self.answered = self.control.host[HostWord.REPORT_REQUEST]
        rollouts, dropped = self.writer.rollout_counts()
        self.reports.publish(
            CollectorTotals(
                account=self.ledger.account(),
                env_steps=self.env_steps,
                vector_steps=self.vector_steps,
                policy_lag_sum=self.policy_lag_sum,
                policy_steps=self.policy_steps,
                rollouts=rollouts,
                rollouts_dropped=dropped,
                log=tuple((name, total, count) for name, (total, count) in self.log.items()),
            )
        )

    def warn(self, text: str) -> None:
        """Sends a warning to the supervisor."""
        self.send("warning", text=text)

    def renew_env(self, error: EnvFailure) -> None:
        """Makes the environments again after one of them raised, and begins new episodes; again where that fails too.

        Raises the error where that is not wanted, or a worker was killed; `CrashLoopError` if it happens too often.
        """
        cfg = self.cfg
        while True:
            if cfg.env.on_error == "raise" or self.restarts.limit == 0 or isinstance(error, EnvWorkerKilled):
                raise error
            text = str(error).splitlines()[0]
            number = self.restarts.add(text)
            self.warn(f"{text}; {number}, by new environments; not bitwise from here on, as episodes begin again")
            self.words[CollectorWord.RESTARTS] += 1
            try:
                self.env.renew()
                self.reset_all("renewed", self.number, self.env_steps, self.words[CollectorWord.RESTARTS])
                return
            except EnvFailure as failure:
                error = failure

    def reset_all(self, *path: str | int) -> None:
        """Begins an episode in every environment, with seeds named by `path`. Raises `EnvFailure`, `NumericsError`."""
        num_envs, obs = self.env.num_envs, self.env.reset(env_seed(self.cfg.seed, *path))
        require_finite(obs, self.cfg.seed)
        self.restore({"obs": obs, "ep_return": np.zeros(num_envs), "ep_length": np.zeros(num_envs, np.int64)})
        self.writer.abandon(range(num_envs))

    def drop_bad_rows(self, error: BadRowError, outcome: StepOutcome) -> StepOutcome:
        """Resets the environments of bad transitions, or all that can only be reset together; returns the other rows.

        Raises `NumericsError` beyond `env.max_bad_rows`, and where an episode begins with NaN or Inf.
        """
        when = f"at env step {self.env_steps}, episode step {int(self.ep_length[error.envs[0]])}"
        begun, where = self.reset_bad(error.envs, f"{error} {when}")
        obs = np.where(where[:, None], begun, outcome.obs_to_act_on)
        require_finite(obs, self.cfg.seed)
        self.ep_return[where], self.ep_length[where] = 0.0, 0
        return outcome._replace(
            reset_obs=obs,
            terminated=outcome.terminated & ~where,
            truncated=outcome.truncated & ~where,
            is_valid=outcome.is_valid & ~where,
        )

    def reset_bad(self, envs: Sequence[int], text: str) -> tuple[Any, Bool]:
        """Counts a bad row of each of `envs`, whose episodes begin again. Returns observations [N, O], and where [N].

        `text` says what is bad. The rest as `drop_bad_rows`.
        """
        env, seed, most = self.env, self.cfg.seed, self.cfg.max_bad_rows
        self.bad_rows += len(envs)
        text += f", seed {seed}"
        if self.bad_rows > most:
            raise NumericsError(text) from None
        all_reset = "" if env.can_reset_some or env.num_envs == 1 else f", and all {env.num_envs} environments reset"
        self.warn(f"{text}; dropped{all_reset}, {self.bad_rows} of env.max_bad_rows={most}")
        where = np.zeros(env.num_envs, np.bool_)
        where[list(envs) if env.can_reset_some else slice(None)] = True
        new_seed = env_seed(seed, "bad_row", self.number, self.env_steps, self.vector_steps)
        obs = env.reset_some(new_seed, range(env.num_envs), where) if env.can_reset_some else env.reset(new_seed)
        self.writer.abandon(np.flatnonzero(where).tolist())
        return obs, where


def require_finite(obs: Any, seed: int) -> None:  # Any: an array, or a tensor
    """Raises `NumericsError` for an episode that begins with NaN or Inf. obs: [N, O]."""
    on_host = obs if isinstance(obs, np.ndarray) else obs.cpu().numpy()
    if len(bad := np.flatnonzero(~np.isfinite(on_host).all(axis=1))):
        raise NumericsError(f"NaN or Inf in the first observation of environment {bad[0]}, seed {seed}")
