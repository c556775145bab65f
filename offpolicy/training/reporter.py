"""What a rank publishes: the policy's weights for the collectors, and its counters for the supervisor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from offpolicy.algos.learner import Learner
from offpolicy.distributed.process_group import checksum
from offpolicy.distributed.world import World
from offpolicy.errors import DesyncError, NumericsError
from offpolicy.nets.policy import flat_size, flat_view, flatten_into
from offpolicy.processes.child import name_threads
from offpolicy.processes.control_page import RankWord
from offpolicy.processes.reports import Reports, pack, unpack
from offpolicy.protocols import BatchSource
from offpolicy.timing.profiler import Profiler
from offpolicy.timing.trace_writer import Mark
from offpolicy.training.rank import Rank
from offpolicy.training.run_memory import weights_mailbox
from offpolicy.types import NO_ACCOUNT, Float32, Float64, LearnerTotals, MetricTotals


class WeightPublisher:
    """Publishes the policy's weights, with the normaliser's statistics; only the leader of a host does."""

    def __init__(self, rank: Rank, learner: Learner) -> None:
        policy = learner.policy
        self._rank, self._learner, self._policy = rank, learner, policy
        self._mailbox = None if rank.cfg.collects_in_learner else weights_mailbox(rank.child, flat_size(policy))
        # The weights published last. Where the actor's parameters lie in such a block it is that block, and so equal to
        # what is published only until the next update.
        self._view = flat_view(policy) if rank.is_leader else None
        self._flat = np.zeros(flat_size(policy), dtype=np.float32) if self._view is None else self._view
        self.version = 0  # of the weights published last
        self._published: int | None = None  # the learner's `policy_changes` then

    def publish(self) -> None:
        """Makes the present weights the newest. Does nothing where they are: as after an update without an actor step.

        A copy of the block costs both sides: the collector reads what the learner's core has just written.
        """
        if self._rank.is_leader and self._published != self._learner.policy_changes:
            self._published = self._learner.policy_changes
            if self._mailbox is None:  # the collector acts with the learner's networks
                self.version += 1
                return
            if self._view is None:
                flatten_into(self._policy, self._flat)
            # Marked before: a collector may take them before this thread continues.
            self._rank.ledger.mark(Mark.PUBLISHED, self._mailbox.version + 1)
            self.version = self._mailbox.publish(self._flat)
            self._rank.words[RankWord.VERSION] = self.version

    @property
    def flat(self) -> Float32:
        """The weights published last, to be evaluated before the next update."""
        if self._mailbox is None and self._view is None:
            flatten_into(self._policy, self._flat)
        return self._flat


class Reporter:
    """Publishes the report of all ranks when rank 0's supervisor asks; the metrics are read only then."""

    def __init__(
        self, rank: Rank, world: World, learner: Learner, source: BatchSource, profiler: Profiler | None = None
    ) -> None:
        """`profiler` is that of `timing.profile_at`; None where nothing is profiled."""
        self._rank, self._learner, self._source = rank, learner, source
        self._world, self._profiler = world, profiler
        self._warmup_updates = 0  # updates of the first iteration and before it: the account begins behind them
        self._reports = Reports[LearnerTotals](rank.child.block("learner_report"), rank.num_ranks)
        names = learner.read_metrics().names
        nothing = LearnerTotals(NO_ACCOUNT, 0, 0, 0.0, MetricTotals(names, np.zeros(len(names)), np.zeros(len(names))))
        self._totals = [nothing] * rank.num_ranks  # of all ranks, as of the newest report

    def run_if_due(self) -> None:
        """Updates the progress words, and reports if all ranks have agreed to: one collective for all numbers."""
        words = self._rank.words
        words[RankWord.PROGRESS] += 1
        words[RankWord.ITERATIONS] += 1
        if self._profiler is not None:
            self._profiler.step()
        num_updates = self._learner.num_updates
        words[RankWord.UPDATES] = num_updates
        self._warmup_updates = self._warmup_updates or num_updates
        if self._world.is_reporting:
            name_threads()  # those started since; the supervisor tells threads apart by name
            rows = self._world.gather(pack((health_facts(self._world, self._learner), self._own_totals())))
            facts, totals = zip(*map(unpack, rows), strict=True)
            check_health(self._rank, self._world, np.array(facts))
            self._publish(totals)

    def run_last(self, *, is_complete: bool) -> None:
        """Reports once more: the last report closes the account."""
        self._rank.words[RankWord.UPDATES] = self._learner.num_updates
        env_steps, stopped_by = self._world.env_steps, self._world.stopped_by
        self._rank.child.send("done", is_complete=is_complete, env_steps=env_steps, stopped_by=stopped_by)
        self._publish(map(unpack, self._world.gather(pack(self._own_totals()))))

    def publish_own(self) -> None:
        """Reports this rank's own counters, without asking the other ranks."""
        self._totals[self._rank.rank] = self._own_totals()
        self._publish(self._totals)

    def _publish(self, totals: Iterable[LearnerTotals]) -> None:
        self._totals = list(totals)
        if self._rank.is_leader:
            self._reports.publish(*self._totals)

    def _own_totals(self) -> LearnerTotals:
        learner, source, ledger = self._learner, self._source, self._rank.ledger
        account = ledger.account()
        if ledger.is_in_iteration:
            # Its time is in the account, but for the end of this phase.
            account = replace(account, iterations=account.iterations + 1)
        return LearnerTotals(
            metrics=learner.read_metrics(),
            updates=learner.num_updates,
            warmup_updates=self._warmup_updates,
            samples=source.samples,
            # The source knows the rings of this host; those of the others grow at the same pace.
            sample_age_sum=source.sample_age_sum * self._rank.job.host.num_hosts,
            account=account,
            packer=source.packer_account(),
            rollouts=source.rollouts,
            device=self._rank.device_timer.totals(),
            late=self._world.late,
        )


def health_facts(world: World, learner: Learner) -> tuple[float, float, float]:
    """Returns if the learner diverged, if by this rank's numbers, and the checksum of its tensors."""
    has_diverged = learner.has_diverged()
    digest = checksum(list(learner.tensors().values())) if world.num_ranks > 1 else 0.0
    return float(has_diverged), float(has_diverged and learner.is_origin()), digest


def check_health(rank: Rank, world: World, table: Float64) -> None:
    """Checks the facts of all ranks [R, 3]; the same on each of them. Raises `NumericsError`, `DesyncError`."""
    if table[:, 0].any():
        step_sizes = "algo.lr" if rank.cfg.algo.learns_from_rollouts else "algo.actor_lr or algo.critic_lr"
        where = f" on {_names(np.flatnonzero(table[:, 1]).tolist())}" if len(table) > 1 else ""
        raise NumericsError(
            f"a gradient's norm or a loss became NaN or Inf{where} before env step {world.env_steps}; the parameters"
            f" were kept from then on. Lower {step_sizes}, set algo.max_grad_norm, or check the reward's scale"
        )
    others = np.flatnonzero(table[:, 2] != table[0, 2]).tolist()
    if others:
        raise DesyncError(
            f"{_names(others)} no longer held the parameters, targets, moments and statistics of rank 0 at env step"
            f" {world.env_steps}: another torch, CPU or GPU model, or a bug"
        )


def _names(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
