"""What a window predicts: by how much overlapping would be faster on the cores there are, and how good that is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from offpolicy.config.schema import RunConfig
from offpolicy.logger.predictions import possible_advice
from offpolicy.logger.record import RunHeader
from offpolicy.model.bottleneck import PACK_BESIDE, PACK_IN_THREAD, Advice, Bottleneck, Verdict
from offpolicy.timing.phases import CoreClass, LearnerPhase
from offpolicy.types import Account, CoreTotals, DeviceTotals, SchedulerStats, Snapshot, TaggedTime
from tests.unit.logger.conftest import MakeSnapshot, verdict_of

MS = 1_000_000


def busy(snapshot: Snapshot, wall_ms: int, others_ms: int, num_cores: int = 2) -> Snapshot:
    classes_ns = dict.fromkeys(map(str, CoreClass), 0) | {
        "others": others_ms * MS, "idle": (num_cores * wall_ms - others_ms) * MS,
    }  # fmt: skip
    return replace(snapshot, cores=CoreTotals(wall_ms * MS, num_cores * wall_ms * MS, classes_ns))


def turns(make_snapshot: MakeSnapshot, others_ms: int = 0) -> tuple[Snapshot, Snapshot]:
    """Two readings of a run of 3 s on two cores, whose sides take turns of some 6 ms, beside another program."""
    before, now = busy(make_snapshot(500), 1000, 0), busy(make_snapshot(1000), 4000, others_ms)
    account = now.collectors[0].account
    slow = replace(account, phases_ns={**account.phases_ns, "env_step": account.phases_ns["env_step"] + 3000 * MS})
    return before, replace(now, collectors=(replace(now.collectors[0], account=slow),))


@pytest.mark.promise("verdict-right")
@pytest.mark.parametrize(
    ("others_ms", "threads", "error", "is_advised"),
    [
        (0, 1, None, True),  # a core for each side
        (0, 2, None, False),  # the learner uses both
        (3000, 1, None, False),  # another program has one
        (0, 1, 0.1, True),
        (0, 1, 5.0, False),  # such predictions were off by more
    ],
)
def test_overlapping_is_advised_where_a_core_is_free_for_it_and_predictions_were_right(  # noqa: PLR0913  # a table
    make_snapshot: MakeSnapshot, header: RunHeader, others_ms: int, threads: int, error: float | None, is_advised: bool
) -> None:
    before, now = turns(make_snapshot, others_ms)
    verdict = verdict_of(before, now, replace(header, learner_threads=threads), error)
    assert verdict is not None
    assert ("collect.mode" in {advice.key for advice in verdict.advice}) is is_advised


@pytest.mark.parametrize(
    ("runner", "possible"),
    [
        ({"name": "single_gpu"}, ["collect.mode=auto", "runner.name=double_buffer", "replay.source=resident"]),
        ({"name": "multi_gpu", "world_size": 2}, ["replay.source=prefetch", "replay.source=resident"]),
        ({"name": "double_buffer"}, ["collect.mode=auto", "replay.source=prefetch"]),
    ],
)
def test_no_advice_is_given_that_the_configuration_refuses(runner: dict[str, Any], possible: list[str]) -> None:
    resident = Advice("", "replay.source", "resident")
    advice = (Advice("", "collect.mode", "auto"), PACK_BESIDE, PACK_IN_THREAD, resident)
    verdict = Verdict(Bottleneck.LEARNER, LearnerPhase.REPLAY_SAMPLE, "", advice)
    config = RunConfig.from_mapping({"runner": runner}).to_mapping()
    found = possible_advice(verdict, config, has_gpu=True).advice
    assert [f"{each.key}={each.value}" for each in found] == possible


@pytest.mark.parametrize(("iterations", "is_judged"), [(1000, True), (501, False)])
def test_a_window_of_a_few_milliseconds_is_not_judged(
    make_snapshot: MakeSnapshot, header: RunHeader, iterations: int, *, is_judged: bool
) -> None:
    """The rest of a run between its last record and its end read "descheduled 1491%"."""
    before, now = make_snapshot(500), make_snapshot(iterations)
    assert (verdict_of(before, now, header) is not None) is is_judged


def moved(account: Account | None, source: str, target: str, ms: int) -> Account:
    """The account with so many milliseconds in another phase."""
    phases_ns = dict(account.phases_ns)
    phases_ns[source] -= ms * MS
    phases_ns[target] += ms * MS
    return replace(account, phases_ns=phases_ns)


def with_accounts(snapshot: Snapshot, learner: Account | None, collector: Account | None) -> Snapshot:
    return replace(
        snapshot,
        learners=(replace(snapshot.learners[0], account=learner),),
        collectors=(replace(snapshot.collectors[0], account=collector),),
    )


def bound_by_collector(snapshot: Snapshot) -> Snapshot:
    """The snapshot after a window of 3,300 ms in which the learner worked for 0.3 s and the collector stepped 3 s."""
    learner = moved(snapshot.learners[0].account, "train", "collector_wait", 2900)
    collector = moved(snapshot.collectors[0].account, "learner_wait", "env_step", 2950)
    return with_accounts(snapshot, learner, collector)


def without_core(account: Account | None) -> Account:
    """The account with 1,650 ms more in which its thread had no core."""
    return replace(account, scheduler=SchedulerStats(account.scheduler.runnable_ns + 1650 * MS, 0))


def label_of(before: Snapshot, now: Snapshot, header: RunHeader) -> str:
    verdict = verdict_of(before, now, replace(header, mode="overlap"))
    assert verdict is not None
    return verdict.label


@pytest.mark.promise("verdict-right")
@pytest.mark.parametrize(
    ("is_learners", "labels"),
    [
        (True, ["contention(train: descheduled 60%)", "collector(env_step 91%)"]),
        (False, ["learner(train 92%)", "contention(env_step: descheduled 60%)"]),
    ],
)
def test_a_side_is_judged_by_the_cores_that_it_was_not_given_itself(
    make_snapshot: MakeSnapshot, header: RunHeader, labels: list[str], *, is_learners: bool
) -> None:
    before, now = make_snapshot(500), make_snapshot(1000)
    found = []
    for after in (now, bound_by_collector(now)):
        learner, collector = after.learners[0].account, after.collectors[0].account
        accounts = (without_core(learner), collector) if is_learners else (learner, without_core(collector))
        found.append(label_of(before, with_accounts(after, *accounts), header))
    assert found == labels


def test_resets_are_judged_by_their_part_of_the_env_steps(make_snapshot: MakeSnapshot, header: RunHeader) -> None:
    """100 of 500 vector steps with a reset take 2,600 ms, the others 1 ms each."""
    after = bound_by_collector(make_snapshot(1000))
    collector = after.collectors[0].account
    assert collector is not None
    tagged = replace(collector, tagged=TaggedTime(100, 2600 * MS))
    label = label_of(make_snapshot(500), with_accounts(after, after.learners[0].account, tagged), header)
    assert label == "collector(env_step: resets 76%)"  # 2,500 of 3,300 ms


@pytest.mark.parametrize(
    ("before", "after", "label"), [(0, 450, "learner(train: launch-bound 92%)"), (500, 500, "learner(train 92%)")]
)
def test_launches_are_judged_by_the_iterations_of_the_window(
    make_snapshot: MakeSnapshot, header: RunHeader, before: int, after: int, label: str
) -> None:
    readings = []
    for iterations, launch_bound in ((500, before), (1000, after)):
        device = DeviceTotals(*[0] * 5, iterations=iterations, launch_bound=launch_bound, dropped=0)
        snapshot = make_snapshot(iterations)
        readings.append(replace(snapshot, learners=(replace(snapshot.learners[0], device=device),)))
    assert label_of(*readings, header) == label


def test_where_another_rank_waits_for_its_collectors_these_bound_the_run(
    make_snapshot: MakeSnapshot, header: RunHeader
) -> None:
    before, now = make_snapshot(500), bound_by_collector(make_snapshot(1000))
    rank = make_snapshot(1000).learners[0]
    first = replace(rank, account=moved(rank.account, "train", "rank_barrier", 2900))
    before, now = replace(before, learners=before.learners * 2), replace(now, learners=(first, *now.learners))
    assert label_of(before, now, header) == "collector(env_step 91%)"
