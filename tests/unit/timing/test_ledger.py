"""The account closes, to the nanosecond, on every path."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.timing import thread_states
from offpolicy.timing.clock import Every, MonotonicClock, Stopwatch, process_birth_ns
from offpolicy.timing.histogram import ENOUGH, percentiles_of
from offpolicy.timing.ledger import SAMPLE_EVERY_NS, Ledger, make_ledger, trace_names
from offpolicy.timing.phases import CollectorPhase
from offpolicy.timing.phases import LearnerPhase as Phase
from offpolicy.timing.thread_states import StateSampler
from offpolicy.timing.time_account import NullLedger
from offpolicy.timing.trace_reader import read_tracks
from offpolicy.timing.trace_writer import Mark, create_tracks, open_track
from tests.fakes import FakeClock


def ledger_at(now_ns: int = 0, *, is_warm: bool = True) -> tuple[Ledger, FakeClock]:
    clock = FakeClock(now_ns)
    ledger = Ledger(Phase, clock)
    if is_warm:
        ledger.end_warmup()
    return ledger, clock


def test_phases_and_other_sum_to_wall_to_the_nanosecond() -> None:
    ledger, clock = ledger_at()
    clock.advance(3)
    with ledger.phase(Phase.TRAIN):
        clock.advance(1_000_001)
    clock.advance(7)
    with ledger.phase(Phase.LOG):
        clock.advance(11)
    account = ledger.account()
    assert account.phases_ns[Phase.TRAIN] == 1_000_001
    assert account.phases_ns[Phase.LOG] == 11
    assert account.phases_ns[Phase.OTHER] == 10
    assert sum(account.phases_ns.values()) == account.wall_ns == 1_000_022


def test_an_inner_phase_takes_its_time_out_of_the_outer_one() -> None:
    ledger, clock = ledger_at()
    with ledger.phase(Phase.TRAIN):
        clock.advance(5)
        with ledger.phase(Phase.PARAM_SYNC):
            clock.advance(40)
        clock.advance(6)
    account = ledger.account()
    assert (account.phases_ns[Phase.TRAIN], account.phases_ns[Phase.PARAM_SYNC]) == (11, 40)
    assert sum(account.phases_ns.values()) == account.wall_ns


def test_an_exception_keeps_its_interval_and_the_account_still_closes() -> None:
    ledger, clock = ledger_at()
    with pytest.raises(KeyError), ledger.phase(Phase.TRAIN):  # noqa: PT012  # the time before the raise is the point
        clock.advance(9)
        raise KeyError
    clock.advance(1)
    account = ledger.account()
    assert account.phases_ns[Phase.TRAIN] == 9
    assert account.phases_ns[Phase.OTHER] == 1
    assert sum(account.phases_ns.values()) == account.wall_ns == 10


def test_a_phase_inside_itself_is_refused() -> None:
    ledger, _ = ledger_at()
    with pytest.raises(RuntimeError, match="train opened inside itself"), ledger.phase(Phase.TRAIN):  # noqa: SIM117
        with ledger.phase(Phase.TRAIN):
            pass


def test_consecutive_iterations_share_their_boundary() -> None:
    ledger, clock = ledger_at()
    for _ in range(3):
        with ledger.phase(Phase.TRAIN):
            clock.advance(10)
        clock.advance(1)
        ledger.close()
    account = ledger.account()
    assert account.iterations == 3
    assert account.wall_ns == 33


def test_the_account_has_a_part_of_an_iteration_from_its_first_phase_to_its_end() -> None:
    ledger, clock = ledger_at(is_warm=False)
    found = [ledger.is_in_iteration]
    for _ in range(2):  # the first one is the warm-up
        with ledger.phase(Phase.TRAIN):
            clock.advance(10)
            ledger.account()
            found.append(ledger.is_in_iteration)
        ledger.close()
        ledger.end_warmup()
        found.append(ledger.is_in_iteration)
    ledger.begin_cooldown()
    with ledger.phase(Phase.TRAIN):
        clock.advance(10)
    assert [*found, ledger.is_in_iteration] == [False, False, False, True, False, False]


def test_warm_up_is_kept_apart_and_starts_at_the_birth_of_the_process() -> None:
    clock = FakeClock(100)
    ledger = Ledger(Phase, clock, opened_ns=40)
    with ledger.phase(Phase.COLLECTOR_WAIT):
        clock.advance(60)
    ledger.end_warmup()
    with ledger.phase(Phase.TRAIN):
        clock.advance(5)
    account = ledger.account()
    assert account.warmup_ns == 120
    assert account.wall_ns == 5
    assert account.phases_ns[Phase.COLLECTOR_WAIT] == 0


def test_until_the_warm_up_ends_everything_is_warm_up() -> None:
    clock = FakeClock()
    ledger = Ledger(Phase, clock)
    with ledger.phase(Phase.LOG):
        clock.advance(5)
        during = ledger.account()
        clock.advance(2)
        ledger.close()
    ledger.end_warmup()
    clock.advance(1)
    ledger.end_warmup()
    account = ledger.account()
    assert (during.wall_ns, during.warmup_ns, sum(during.phases_ns.values())) == (0, 5, 0)
    assert (account.wall_ns, account.warmup_ns, account.iterations) == (1, 7, 0)


def test_an_account_taken_inside_a_phase_includes_its_time_so_far() -> None:
    ledger, clock = ledger_at()
    with ledger.phase(Phase.LOG):
        clock.advance(4)
        account = ledger.account()
        clock.advance(2)
    assert account.phases_ns[Phase.LOG] == 4
    assert sum(account.phases_ns.values()) == account.wall_ns == 4
    assert ledger.account().phases_ns[Phase.LOG] == 6


def test_a_disabled_ledger_reads_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise AssertionError("the clock was read")

    monkeypatch.setattr(MonotonicClock, "now_ns", staticmethod(refuse))
    monkeypatch.setattr("offpolicy.timing.ledger.cpu_ns", refuse)
    ledger = make_ledger(Phase, is_enabled=False)
    with ledger.phase(Phase.TRAIN), ledger.phase(Phase.TRAIN):
        ledger.close()
    ledger.end_warmup()
    assert isinstance(ledger, NullLedger)
    assert ledger.account() is None
    with pytest.raises(AssertionError, match="clock was read"):
        make_ledger(Phase, is_enabled=True)


def test_a_process_was_born_before_now_but_not_long_ago() -> None:
    age_s = (MonotonicClock.now_ns() - process_birth_ns()) / 1e9
    assert 0.0 <= age_s < 3600.0


def test_every_is_due_once_per_period_and_does_not_catch_up() -> None:
    clock = FakeClock()
    every = Every(Stopwatch(clock).elapsed_s, 2.0)
    due = []
    for second in range(1, 10):
        clock.advance(1_000_000_000 if second != 4 else 5_000_000_000)
        due.append(every.is_due())
    assert due == [False, True, False, True, False, True, False, True, False]


def test_what_is_due_comes_as_often_as_its_period_says_however_seldom_it_is_asked_for() -> None:
    clock = FakeClock()
    every, due = Every(Stopwatch(clock).elapsed_s, 2.0), 0
    for _ in range(40):
        clock.advance(1_500_000_000)
        due += every.is_due()
    assert due == 30


def test_tagged_time_is_that_of_this_iteration_alone() -> None:
    ledger, clock = ledger_at()
    for us in (5, 70, 6):
        with ledger.phase(Phase.TRAIN):
            clock.advance(1000 * us)
        if us == 70:
            ledger.tag(Phase.TRAIN, 3)
        ledger.close()
    assert ledger.account().tagged == (1, 70_000, 3, 9, 3 * 70, 70 * 70)
    assert ledger.account().phases_ns[Phase.TRAIN] == 81_000


def test_what_comes_after_the_last_iteration_is_set_apart_within_the_account() -> None:
    ledger, clock = ledger_at()
    with ledger.phase(Phase.TRAIN):
        clock.advance(10)
    ledger.close()
    assert ledger.account().cooldown is None
    clock.advance(2)
    ledger.begin_cooldown()
    with ledger.phase(Phase.EVALUATION):
        clock.advance(300)
    ledger.begin_cooldown()  # only the first call counts
    account = ledger.account()
    assert account.cooldown is not None
    assert {phase: ns for phase, ns in account.cooldown.phases_ns.items() if ns} == {"evaluation": 300, "other": 2}
    assert sum(account.phases_ns.values()) == account.wall_ns == 312
    assert 0 <= account.cooldown.cpu_ns < account.cpu_ns
    assert account.cooldown.scheduler.runnable_ns <= account.scheduler.runnable_ns


def test_a_run_that_ends_in_its_warm_up_has_no_time_after_the_last_iteration() -> None:
    """All of its time is warm-up, which every reading of the account begins anew."""
    ledger, clock = ledger_at(is_warm=False)
    with ledger.phase(Phase.TRAIN):
        clock.advance(10)
    ledger.begin_cooldown()
    with ledger.phase(Phase.EVALUATION):
        clock.advance(300)
    account = ledger.account()
    assert account.cooldown is None
    assert (account.wall_ns, account.warmup_ns) == (0, 310)


def test_what_was_tagged_in_the_warm_up_is_no_part_of_the_account() -> None:
    ledger, clock = ledger_at(is_warm=False)
    with ledger.phase(Phase.TRAIN):
        clock.advance(70_000)
    ledger.tag(Phase.TRAIN, 3)
    ledger.end_warmup()
    assert ledger.account().tagged.iterations == 0


def test_slow_iterations_are_part_of_the_account() -> None:
    ledger, clock = ledger_at()
    for train_ms in (*[5] * 400, 50):
        with ledger.phase(Phase.TRAIN):
            clock.advance(train_ms * 1_000_000)
        ledger.close()
    slow = ledger.account().slow
    assert slow is not None
    assert (slow.iterations, slow.phases_ns["train"]) == (1, 50_000_000)


def span_of_sync(ledger: Ledger, clock: FakeClock, ns: int) -> tuple[int, int]:
    """A span of `param_sync` inside `train`: its start and stop."""
    with ledger.phase(Phase.TRAIN):
        with ledger.phase(Phase.PARAM_SYNC):
            start_ns = ledger.switched_ns
            clock.advance(ns)
        return start_ns, ledger.switched_ns


def test_a_span_that_is_split_moves_its_head_and_the_sum_stays() -> None:
    ledger, clock = ledger_at(50)
    span = span_of_sync(ledger, clock, 100)
    ledger.split(Phase.PARAM_SYNC, Phase.RANK_BARRIER, *span, 30)
    account = ledger.account()
    assert (account.phases_ns[Phase.RANK_BARRIER], account.phases_ns[Phase.PARAM_SYNC]) == (30, 70)
    assert sum(account.phases_ns.values()) == account.wall_ns == 100


def test_a_span_of_the_last_iteration_is_split_there() -> None:
    """Tagged time is that of one iteration: it shows that the next one has neither gained nor lost."""
    ledger, clock = ledger_at()
    span = span_of_sync(ledger, clock, 100)
    ledger.close()
    ledger.split(Phase.PARAM_SYNC, Phase.RANK_BARRIER, *span, 30)
    span_of_sync(ledger, clock, 7)
    ledger.tag(Phase.PARAM_SYNC, 1)
    assert ledger.account().tagged[:2] == (1, 7)
    assert ledger.account().phases_ns[Phase.PARAM_SYNC] == 77


def test_a_span_that_begins_where_the_last_iteration_ended_leaves_that_one_as_it_was() -> None:
    ledger, clock = ledger_at()
    span_of_sync(ledger, clock, 100)
    ledger.close()
    span = span_of_sync(ledger, clock, 7)
    ledger.split(Phase.PARAM_SYNC, Phase.RANK_BARRIER, *span, 5)
    ledger.tag(Phase.PARAM_SYNC, 1)
    assert ledger.account().tagged[:2] == (1, 2)


def test_a_span_of_the_warm_up_is_not_split() -> None:
    clock = FakeClock(5)
    ledger = Ledger(Phase, clock)
    span = span_of_sync(ledger, clock, 100)
    ledger.end_warmup()
    ledger.split(Phase.PARAM_SYNC, Phase.RANK_BARRIER, *span, 30)
    account = ledger.account()
    assert (account.wall_ns, account.warmup_ns, set(account.phases_ns.values())) == (0, 100, {0})


TracedLedger = tuple[Ledger, FakeClock, Path]


@pytest.fixture
def traced_ledger(tmp_path: Path) -> TracedLedger:
    """A ledger from 5,000 ns on, its clock, and the directory of its track."""
    directory, clock = tmp_path / "trace", FakeClock(5_000)
    create_tracks(directory, ["learner-0"], 1)
    trace = open_track(str(directory), "learner-0", trace_names(Phase), "learner 0")
    return Ledger(Phase, clock, trace=trace), clock, directory


def test_the_trace_of_a_span_that_is_split_shows_both_parts(traced_ledger: TracedLedger) -> None:
    ledger, clock, directory = traced_ledger
    ledger.trace_when_split(Phase.PARAM_SYNC)
    start_ns, stop_ns = span_of_sync(ledger, clock, 100_000)
    ledger.split(Phase.PARAM_SYNC, Phase.RANK_BARRIER, start_ns, stop_ns, 30_000)
    (track,) = read_tracks(directory)
    spans = [[int(at[0]) for at in track.spans(phase)] for phase in (Phase.RANK_BARRIER, Phase.PARAM_SYNC)]
    assert spans == [[5_000, 35_000], [35_000, 105_000]]
    assert len(track.spans()[0]) == 2


def test_time_that_another_clock_has_measured_is_taken_out_of_the_open_phase() -> None:
    ledger, clock = ledger_at(10)
    with ledger.phase(Phase.TRAIN):
        clock.advance(100)
        assert ledger.insert(Phase.PARAM_SYNC, 30) == (80, 110)
        clock.advance(5)
        assert ledger.insert(Phase.PARAM_SYNC, 30) == (110, 115)  # no further back than the last one
    account = ledger.account()
    assert (account.phases_ns[Phase.TRAIN], account.phases_ns[Phase.PARAM_SYNC]) == (70, 35)
    assert sum(account.phases_ns.values()) == account.wall_ns == 105


def test_the_trace_shows_the_open_phase_only_up_to_where_another_clock_has_measured(
    traced_ledger: TracedLedger,
) -> None:
    ledger, clock, directory = traced_ledger
    with ledger.phase(Phase.TRAIN):
        clock.advance(100_000)
        ledger.insert(Phase.PARAM_SYNC, 30_000)
        clock.advance(5_000)
    (track,) = read_tracks(directory)
    assert [at.tolist() for at in track.spans(Phase.TRAIN)] == [[5_000, 105_000], [75_000, 110_000]]


def test_the_iterations_of_a_trace_are_numbered_from_the_first_one_of_the_warm_up_on(
    traced_ledger: TracedLedger,
) -> None:
    ledger, clock, directory = traced_ledger
    for _ in range(2):
        clock.advance(100)
        ledger.close()
    ledger.end_warmup()
    clock.advance(100)
    ledger.close()
    (track,) = read_tracks(directory)
    assert track.marks(Mark.ITERATION) == [(5_100, 1), (5_200, 2), (5_300, 3)]


# -- states of the thread ---------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The clock of the ledger, and of its thread, which never has a core."""
    clock = FakeClock()
    monkeypatch.setattr(thread_states, "thread_times", lambda: (clock.now_ns(), 0, clock.now_ns()))
    return clock


def sampled_ns(ledger: Ledger) -> dict[str, int]:
    """The wall of each phase in the sampled iterations."""
    states = ledger.account().states
    assert states is not None
    return {name: int(wall_ns) for name, (wall_ns, _, _) in zip(ledger.names, states, strict=True) if wall_ns}


def test_about_one_whole_iteration_in_each_period_is_sampled(clock: FakeClock) -> None:
    ledger = Ledger(Phase, clock)
    ledger.end_warmup()
    part_ns, num_iterations = SAMPLE_EVERY_NS // 40, 10_000  # 20 iterations in a period
    for _ in range(num_iterations):
        clock.advance(part_ns)
        with ledger.phase(Phase.TRAIN):
            clock.advance(part_ns)
        ledger.close()
    sampled = sampled_ns(ledger)
    assert sampled[Phase.TRAIN] == sampled[Phase.OTHER]
    num_sampled, rest_ns = divmod(sampled[Phase.TRAIN], part_ns)
    assert rest_ns == 0
    assert num_sampled == pytest.approx(num_iterations / 20, rel=0.15)


@pytest.mark.parametrize("length", [7, 10, 25])
def test_long_iterations_that_come_at_regular_times_are_sampled_as_often_as_others(
    clock: FakeClock, length: int
) -> None:
    ledger = Ledger(Phase, clock)
    ledger.end_warmup()
    for number in range(30_000):  # another thread holds up one iteration of `length`
        held = number % length == 0
        with ledger.phase(Phase.TRAIN if held else Phase.LOG):
            clock.advance(20_000_000 if held else 3_000_000)
        ledger.close()
    sampled = sampled_ns(ledger)
    true_share = 20 / (20 + 3 * (length - 1))
    assert sampled[Phase.TRAIN] / sum(sampled.values()) == pytest.approx(true_share, abs=0.06)


def test_the_states_of_the_warm_up_are_forgotten(clock: FakeClock) -> None:
    ledger = Ledger(Phase, clock)
    for _ in range(2):  # the first one says how long iterations are; the one after these is sampled
        clock.advance(SAMPLE_EVERY_NS)
        ledger.close()
    assert ledger._is_sampled
    clock.advance(5)
    assert sampled_ns(ledger) == {}
    ledger.end_warmup()
    clock.advance(7)
    ledger.close()
    assert sampled_ns(ledger) == {}


def test_without_a_histogram_there_are_no_states() -> None:
    clock = FakeClock()
    ledger = Ledger(Phase, clock, has_histogram=False)
    ledger.end_warmup()
    clock.advance(2 * SAMPLE_EVERY_NS)
    ledger.close()
    assert ledger._now_ns == clock.now_ns
    assert ledger.account().states is None


def test_an_iteration_that_is_not_sampled_reads_no_clock_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(StateSampler, "add", lambda *arguments: calls.append(1))
    ledger, clock = ledger_at()
    for _ in range(100):
        with ledger.phase(Phase.TRAIN):
            clock.advance(SAMPLE_EVERY_NS // 200)
        ledger.close()
    assert calls == []


def test_reading_the_states_is_never_other(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateSampler, "add", lambda *arguments: clock.advance(100))
    ledger = Ledger(Phase, clock)
    ledger.end_warmup()
    for _ in range(2):
        clock.advance(SAMPLE_EVERY_NS)
        ledger.close()
    with ledger.phase(Phase.TRAIN):
        clock.advance(7)
    assert (ledger._phases_ns[ledger.names.index("train")], ledger._phases_ns[ledger.names.index("other")]) == (
        207, 2 * SAMPLE_EVERY_NS
    )  # fmt: skip


def test_moved_time_is_that_of_the_other_phase_in_the_same_iteration_and_the_sum_stays() -> None:
    ledger, clock = ledger_at()
    for moved_ns in (0, 4_000_000):
        with ledger.phase(Phase.TRAIN):
            clock.advance(9_000_000)
            ledger.move(Phase.TRAIN, Phase.REPLAY_SAMPLE, moved_ns)  # while it is open
        ledger.close()
    account = ledger.account()
    assert (account.phases_ns[Phase.TRAIN], account.phases_ns[Phase.REPLAY_SAMPLE]) == (14_000_000, 4_000_000)
    assert sum(account.phases_ns.values()) == account.wall_ns == 18_000_000
    assert account.histogram is not None
    spread = percentiles_of(account.histogram[list(Phase).index(Phase.TRAIN)])
    assert spread is not None
    assert (spread.p50, spread.max) == (pytest.approx(5.0, rel=0.03), pytest.approx(9.0, rel=0.03))


def test_a_snapshot_for_a_checkpoint_makes_no_vector_step_an_outlier() -> None:
    clock = FakeClock()
    ledger = Ledger(CollectorPhase, clock)
    ledger.end_warmup()
    for snapshot_ms in (*(0,) * (ENOUGH + 100), 50):
        with ledger.phase(CollectorPhase.ENV_STEP):
            clock.advance(1_000_000)
        with ledger.phase(CollectorPhase.SNAPSHOT):
            clock.advance(snapshot_ms * 1_000_000)
        ledger.close()
    assert ledger.take_outlier() is None


def test_the_iterations_before_an_outlier_begin_where_the_warm_up_ended() -> None:
    ledger, clock = ledger_at(10**9, is_warm=False)
    clock.advance(7)
    ledger.end_warmup()
    for ms in (*(1,) * (ENOUGH + 100), 50):
        with ledger.phase(Phase.TRAIN):
            clock.advance(ms * 1_000_000)
        ledger.close()
    outlier = ledger.take_outlier()
    assert outlier is not None
    assert (outlier.duration_ns, outlier.start_ns) == (50_000_000, 10**9 + 7)
