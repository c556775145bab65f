"""Decisions of the supervisor, with processes that only remember what was done to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from offpolicy import fault
from offpolicy.errors import CheckpointError, StartError
from offpolicy.processes.control_page import CollectorWord, ControlPage, HostWord, RankWord, Stop
from offpolicy.processes.restarts import LEARNERS, NO_RESTARTS, LearnerRestarts, RestartPolicy, Restarts
from offpolicy.processes.shared_memory import WakeEvent
from offpolicy.processes.supervisor import Child, Failure, Start, Supervisor, SupervisorConfig

STOP_TIMEOUT_S, STEP_TIMEOUT_S = 60.0, 10.0
CRASH = {"kind": "error", "text": "step 3", "error": "EnvFailure", "code": 1, "traceback": "Traceback ..."}
KILLED = "was killed by SIGKILL"
LOST = {"kind": "error", "text": "lost rank 1", "error": "PeerLostError", "code": 70, "is_consequence": True}


class Process:
    """Exits when the test asks for it, or when it is killed; its pidfd is the read end of a pipe."""

    def __init__(self, pid: int) -> None:
        self.pid, self.code, self.signals = pid, 0, list[int]()
        self.pidfd, self._life = os.pipe()

    def exit(self, code: int) -> None:
        if self._life >= 0:
            self.code, life, self._life = code, self._life, -1
            os.close(life)

    def kill(self) -> None:
        self.exit(-signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def poll(self) -> int | None:
        return None if self._life >= 0 else self.code

    def wait(self, timeout_s: float | None = None) -> int:
        return self.code


class Stage:
    """A supervisor of fake children; each tick of its loop takes a second of the fake clock."""

    def __init__(
        self,
        *roles: str,
        restarts: RestartPolicy = NO_RESTARTS,
        learner_restarts: int = 0,
        keeps_others: bool = True,
        renew: Callable[[], tuple[dict[str, Any], tuple[str, ...]]] = lambda: ({"checkpoint": 40}, ()),
    ) -> None:
        self.now_s = 100.0
        deaths = Restarts(RestartPolicy(learner_restarts), lambda: self.now_s)
        again = LearnerRestarts(deaths, renew, keeps_others)
        self.event = WakeEvent.create()
        self.control = ControlPage(memoryview(bytearray(ControlPage.nbytes(2, 2))), 2, 2)
        config = SupervisorConfig(
            "test", 2, STOP_TIMEOUT_S, lambda: self.now_s,
            num_hosts=2, restarts=restarts, learner_restarts=again,
        )  # fmt: skip
        self.supervisor = Supervisor(self.control, (self.event,), config)
        self.processes: dict[str, Process] = {}
        self.messages: list[tuple[str, Any]] = []
        self.refused: set[str] = set()  # names of children that cannot be started
        self._roles, self._pipes, self._started = roles, dict[str, int](), list[int]()

    def __enter__(self) -> Stage:
        self.supervisor.__enter__()
        self.supervisor.spawn = self.spawn  # type: ignore[method-assign]
        for name in self._roles:
            self.add(name)
        return self

    def spawn(self, start: Start) -> int:
        if start.name in self.refused:
            raise StartError(f"{start.name} cannot be started: Cannot allocate memory")
        return self.add(f"{start.role}-{start.index}", start)

    def add(self, name: str, start: Start | None = None) -> int:
        """Starts a fake child; returns its pid."""
        role, index = name.split("-")
        process, (read, pipe) = Process(1000 + len(self._started)), os.pipe()
        self._started.append(pipe)
        self._pipes[name] = pipe
        os.set_blocking(read, False)
        start = start or Start(role, int(index), "module:main", {"checkpoint": None}, {})
        child = Child(start, process, process.pidfd, read)  # type: ignore[arg-type]
        self.processes[name] = process
        self.supervisor._children.append(child)
        self.supervisor._selector.register(read, 1, child)
        self.supervisor._selector.register(process.pidfd, 1, child)
        return process.pid

    def __exit__(self, *error: object) -> None:
        self.supervisor.__exit__(*error)
        for pipe in self._started:
            os.close(pipe)

    def send(self, name: str, **message: Any) -> None:
        os.write(self._pipes[name], json.dumps(message).encode() + b"\n")

    def crash(self, name: str, message: dict[str, Any], code: int = 1) -> None:
        self.send(name, **message)
        self.processes[name].exit(code)

    def run(
        self,
        script: dict[int, Any] | None = None,
        tick_s: float = 1.0,
        on_signal: Callable[[], None] = lambda: None,
    ) -> Failure | None:
        """Runs until all children have exited; `script` has a call by tick."""
        ticks = iter(range(100_000))

        def on_tick() -> None:
            self.now_s += tick_s
            (script or {}).get(next(ticks), lambda: None)()

        self.supervisor.run(lambda child, m: self.messages.append((child.name, m)), on_tick, STEP_TIMEOUT_S, on_signal)
        return self.supervisor.failure

    def stop_level(self) -> int:
        return self.control.host.get(HostWord.STOP)

    def follow(self, *names: str) -> None:
        """Collectors exit when they are asked to, as `on_tick` of a test."""
        if self.stop_level() == Stop.EXIT:
            for name in names:
                self.processes[name].exit(0)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("supervisor", "watchdog"):  # the pids of fake processes may be those of real ones
        monkeypatch.setattr(f"offpolicy.processes.{module}.is_stopped", lambda pid: False)
    monkeypatch.setattr("offpolicy.processes.supervisor.TICK_S", 0.0)
    monkeypatch.setattr("offpolicy.processes.supervisor.STACKS_S", 0.0)


def freeze(monkeypatch: pytest.MonkeyPatch, name: str, among: tuple[str, ...] = ("learner-0", "collector-0")) -> None:
    """Lets the fake process `name` be stopped by a signal."""
    pid = 1000 + among.index(name)
    for module in ("supervisor", "watchdog"):
        monkeypatch.setattr(f"offpolicy.processes.{module}.is_stopped", lambda asked: asked == pid)


def exit_of(stage: Stage, name: str, code: int = 0) -> Any:
    return lambda: stage.processes[name].exit(code)


def test_a_process_that_the_host_program_starts_meanwhile_outlives_the_run() -> None:
    with Stage("learner-0") as stage:
        other = subprocess.Popen(["sleep", "60"])
        stage.run({0: exit_of(stage, "learner-0")})
    assert other.poll() is None
    other.kill()
    assert other.wait() == -signal.SIGKILL


def test_run_ends_without_failure_when_the_learner_has_finished_and_the_collector_follows() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.send("learner-0", kind="hello", number=1)
        script = {2: exit_of(stage, "learner-0"), 5: lambda: stage.follow("collector-0")}
        assert stage.run(script) is None
        assert stage.messages == [("learner 0", {"kind": "hello", "number": 1})]
        assert stage.control.collectors[0].get(CollectorWord.IS_GONE) == 1
        assert stage.event.wait(0.0)


def test_failure_names_the_child_its_error_and_the_env_steps_of_all_hosts() -> None:
    with Stage("learner-0", "collector-1") as stage:
        stage.control.collectors[0].set(CollectorWord.ENV_STEPS, 40)
        stage.crash("collector-1", CRASH)
        failure = stage.run({3: exit_of(stage, "learner-0")})
    assert failure == Failure("collector", 1, 1001, 80, 1, "EnvFailure: step 3", "Traceback ...")


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (-9, "killed by SIGKILL; what it printed is in train.log"),
        (3, "exited with code 3 without being asked to; what it printed is in train.log"),
        (0, "exited with code 0 without being asked to; what it printed is in train.log"),
    ],
)
def test_a_child_that_exits_without_a_message_is_described_by_its_exit_code(code: int, cause: str) -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.processes["collector-0"].exit(code)
        failure = stage.run({3: exit_of(stage, "learner-0")})
    assert failure is not None
    assert (failure.exit_code, failure.cause) == (1, cause)


def test_learner_is_asked_to_finish_when_a_collector_fails() -> None:
    levels: list[int] = []
    with Stage("learner-0", "collector-0") as stage:
        stage.crash("collector-0", CRASH)
        stage.run({1: lambda: levels.append(stage.stop_level()), 3: exit_of(stage, "learner-0")})
    assert levels == [Stop.FINISH]


@pytest.mark.parametrize("first", ["learner-0", "learner-1"])
def test_a_consequence_is_replaced_by_its_cause_and_never_replaces_it(first: str) -> None:
    with Stage("learner-0", "learner-1") as stage:
        messages = {"learner-0": LOST, "learner-1": CRASH}
        second = "learner-1" if first == "learner-0" else "learner-0"
        stage.crash(first, messages[first])
        failure = stage.run({2: lambda: stage.crash(second, messages[second])})
    assert failure is not None
    assert (failure.index, failure.is_consequence) == (1, False)


def test_a_killed_collector_is_started_again_with_the_time_of_a_start_and_is_not_gone() -> None:
    with Stage("learner-0", "collector-1", restarts=RestartPolicy(2)) as stage:
        words = stage.control.collectors[1]
        for word in (
            CollectorWord.PROGRESS,
            CollectorWord.IS_WAITING,
            CollectorWord.ENV_STEPS,
            CollectorWord.HAS_BEGUN,
        ):
            words.set(word, 7)
        script = {
            2: exit_of(stage, "collector-1", -9), 5: lambda: seen.append(stage.stop_level()),
            6: exit_of(stage, "learner-0"), 8: lambda: stage.follow("collector-1"),
        }  # fmt: skip
        seen: list[int] = []
        assert stage.run(script) is None
        assert seen == [Stop.RUN]
        [(name, message), started] = stage.messages
        assert (name, message["kind"]) == ("collector 1", "restart")
        assert started == ("collector 1", {"kind": "restarted", "pid": 1002})
        assert message["text"] == (
            "collector 1 (pid 1001) died at env step 14: was killed by SIGKILL; restart 1 of at most 2"
        )
        assert [words.get(word) for word in (CollectorWord.PROGRESS, CollectorWord.IS_WAITING)] == [0, 0]
        assert [words.get(word) for word in (CollectorWord.ENV_STEPS, CollectorWord.RESTARTS)] == [7, 1]


def test_too_many_deaths_of_a_collector_are_a_crash_loop() -> None:
    with Stage("learner-0", "collector-0", restarts=RestartPolicy(2)) as stage:
        deaths = {tick: lambda: stage.processes["collector-0"].exit(-11) for tick in (1, 4, 7)}
        failure = stage.run(deaths | {10: exit_of(stage, "learner-0")})
        assert stage.control.collectors[0].get(CollectorWord.IS_GONE) == 1
    assert failure is not None
    assert (failure.exit_code, failure.role) == (70, "collector")
    assert failure.cause.count("it was killed by SIGSEGV") == 3


def test_a_collector_that_dies_while_the_run_stops_is_not_started_again() -> None:
    with Stage("learner-0", "collector-0", restarts=RestartPolicy(2)) as stage:
        stop = {0: lambda: stage.supervisor.stop(Stop.FINISH), 2: exit_of(stage, "collector-0", -9)}
        failure = stage.run(stop | {4: exit_of(stage, "learner-0")})
        assert stage.control.collectors[0].get(CollectorWord.IS_GONE) == 1
    assert failure is not None


def test_a_collector_that_is_killed_after_everything_was_saved_is_no_failure() -> None:
    with Stage("learner-0", "collector-0") as stage:
        assert stage.run({2: exit_of(stage, "learner-0"), 4: exit_of(stage, "collector-0", -9)}) is None


def spawned(stage: Stage) -> list[tuple[int, Any]]:
    """The learners that run now: index and payload."""
    return [(child.index, child.start.payload) for child in stage.supervisor._children if child.is_learner]


def test_a_killed_learner_is_started_again_from_the_checkpoint_beside_the_collectors() -> None:
    with Stage("learner-0", "learner-1", "collector-0", learner_restarts=2) as stage:
        leader = stage.control.leader
        for word, value in ((RankWord.PROGRESS, 7), (RankWord.IS_WAITING, 1), (RankWord.SNAPSHOT_REQUEST, 3)):
            leader.set(word, value)
        seen: list[Any] = []
        failure = stage.run({
            2: exit_of(stage, "learner-1", -9),
            6: lambda: seen.append((stage.stop_level(), spawned(stage), stage.processes["collector-0"].code)),
            7: exit_of(stage, "learner-0"), 8: exit_of(stage, "learner-1"), 9: lambda: stage.follow("collector-0"),
        })  # fmt: skip
        assert failure is None
        assert seen == [(Stop.RUN, [(0, {"checkpoint": 40}), (1, {"checkpoint": 40})], 0)]
        words = (RankWord.PROGRESS, RankWord.IS_WAITING, RankWord.SNAPSHOT_RELEASE)
        assert [leader.get(word) for word in words] == [0, 0, 3]
        assert [message for _, message in stage.messages] == [
            {"kind": "restart", "text": f"learner 1 (pid 1001) died at env step 0: {KILLED}; restart 1 of at most 2"},
            {"kind": "restarted", "pid": 1003}, {"kind": "restarted", "pid": 1004},
        ]  # fmt: skip
    assert not stage.supervisor.must_start_over


def test_a_rank_that_notices_the_death_of_another_first_does_not_end_the_run() -> None:
    with Stage("learner-0", "learner-1", "collector-0", learner_restarts=2) as stage:
        seen: list[Any] = []
        stage.crash("learner-0", LOST)  # reaped first, although rank 1 died before
        stage.processes["learner-1"].exit(-11)
        failure = stage.run({
            3: lambda: seen.append(spawned(stage)),
            4: exit_of(stage, "learner-0"), 5: exit_of(stage, "learner-1"), 6: lambda: stage.follow("collector-0"),
        })  # fmt: skip
    assert failure is None
    assert [index for index, _ in seen[0]] == [0, 1]
    assert "learner 1 (pid 1001) died" in stage.messages[0][1]["text"]


def test_where_the_others_cannot_stay_all_end_to_begin_again() -> None:
    with Stage("learner-0", "collector-0", "evaluator-0", learner_restarts=2, keeps_others=False) as stage:
        failure = stage.run({2: exit_of(stage, "learner-0", -9)})
        assert (failure, stage.supervisor.must_start_over) == (None, True)
        assert [stage.processes[name].code for name in ("collector-0", "evaluator-0")] == [-9, -9]


def test_a_collector_that_ends_before_the_other_ranks_does_not_stop_the_run() -> None:
    with Stage("learner-0", "learner-1", "collector-0", learner_restarts=2, keeps_others=False) as stage:
        slow = stage.processes["learner-1"]
        slow.kill = lambda: None  # type: ignore[method-assign]  # it takes a while
        failure = stage.run({2: exit_of(stage, "learner-0", -9), 5: lambda: slow.exit(-9)})
        assert (failure, stage.supervisor.must_start_over) == (None, True)


def test_a_signal_meanwhile_ends_the_run() -> None:
    with Stage("learner-0", "collector-0", learner_restarts=2, keeps_others=False) as stage:
        kill = exit_of(stage, "learner-0", -9)
        stage.run({2: lambda: (kill(), os.kill(os.getpid(), signal.SIGINT))})
        assert (stage.supervisor.signal_code, stage.supervisor.must_start_over) == (130, False)


@pytest.mark.parametrize("keeps_others", [True, False])
def test_too_many_deaths_of_learners_are_a_crash_loop_that_names_them(keeps_others: bool) -> None:
    with Stage("learner-0", "learner-1", learner_restarts=1, keeps_others=keeps_others) as stage:
        deaths = stage.supervisor._config.learner_restarts.deaths  # type: ignore[union-attr]
        deaths.add(LEARNERS, -11, {}, 5, "learner 1")
        failure = stage.run({2: exit_of(stage, "learner-0", -9)})
    assert failure is not None
    assert (failure.exit_code, failure.role, failure.index) == (70, "learner", 0)
    assert failure.cause == (
        "crash loop: they died 2 times within 10 minutes: at env step 5 learner 1 was killed by SIGSEGV; at env step 0"
        " learner 0 was killed by SIGKILL"
    )


@pytest.mark.parametrize("message", [None, CRASH])
def test_an_error_of_a_learner_is_not_survived(message: dict[str, Any] | None) -> None:
    with Stage("learner-0", learner_restarts=2) as stage:
        if message:
            stage.crash("learner-0", message)
        else:
            stage.processes["learner-0"].exit(3)
        failure = stage.run()
    assert failure is not None
    assert failure.exit_code == 1


def test_without_a_usable_checkpoint_a_dead_learner_ends_the_run() -> None:
    def renew() -> Any:
        raise CheckpointError("step-40: learner.safetensors is damaged")

    with Stage("learner-0", "collector-0", learner_restarts=2, renew=renew) as stage:
        failure = stage.run({2: exit_of(stage, "learner-0", -9), 5: lambda: stage.follow("collector-0")})
    assert failure is not None
    assert (failure.exit_code, failure.cause) == (66, "step-40: learner.safetensors is damaged")


def test_a_learner_that_dies_while_the_run_stops_is_not_started_again() -> None:
    with Stage("learner-0", "learner-1", learner_restarts=2) as stage:
        stop = {0: lambda: stage.supervisor.stop(Stop.FINISH), 2: exit_of(stage, "learner-0", -9)}
        failure = stage.run(stop | {4: exit_of(stage, "learner-1")})
    assert failure is not None
    assert failure.role == "learner"


def test_a_stop_while_the_other_ranks_end_names_the_dead_one() -> None:
    with Stage("learner-0", "learner-1", learner_restarts=2) as stage:
        slow = stage.processes["learner-1"]
        slow.kill = lambda: None  # type: ignore[method-assign]  # it takes a while
        failure = stage.run({
            1: exit_of(stage, "learner-0", -9), 3: lambda: stage.supervisor.stop(Stop.FINISH),
            4: lambda: slow.exit(-9),
        })  # fmt: skip
    assert failure is not None
    assert (failure.index, failure.pid) == (0, 1000)


def test_other_ranks_have_a_short_grace_after_a_rank_died() -> None:
    with Stage("learner-0", "learner-1") as stage:
        stage.processes["learner-0"].exit(-9)
        stage.run()
        assert stage.processes["learner-1"].code == -signal.SIGKILL
        assert stage.now_s <= 100.0 + 10.0


def test_a_hung_collector_writes_its_stacks_and_is_killed() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0].bump(CollectorWord.PROGRESS)
        failure = stage.run({30: exit_of(stage, "learner-0")})
        assert stage.processes["collector-0"].signals == [signal.SIGUSR2]
    assert failure is not None
    assert (failure.role, failure.exit_code) == ("collector", 70)
    assert failure.cause.startswith("no progress for 18 s, longer than env.step_timeout_s")


def test_children_that_wait_for_each_other_end_the_run() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0].set(CollectorWord.IS_WAITING, 1)
        stage.control.leader.set(RankWord.IS_WAITING, 1)
        failure = stage.run()
    assert failure is not None
    assert (failure.exit_code, failure.cause) == (70, "learner and collector waited for each other for 10 s")


def test_a_stop_that_takes_too_long_kills_all_and_is_a_hang() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0].set(CollectorWord.IS_WAITING, 1)
        failure = stage.run({0: lambda: stage.supervisor.stop(Stop.FINISH)})
        assert stage.processes["collector-0"].code == -signal.SIGKILL
    assert failure is not None
    assert failure.cause == "did not finish within 60 s of the stop request"


def test_a_collector_that_sleeps_on_after_a_stop_is_killed_in_time_and_named() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0].set(CollectorWord.IS_WAITING, 1)

        def stop() -> None:
            stage.supervisor.stop(Stop.FINISH)
            stage.control.leader.bump(RankWord.SNAPSHOT_REQUEST)

        assert stage.run({0: stop, 14: exit_of(stage, "learner-0")}) is None
        assert stage.processes["collector-0"].code == -signal.SIGKILL
        ((name, message),) = stage.messages
    assert (name, message["kind"]) == ("collector 0", "warning")
    assert message["text"].startswith("collector 0 (pid 1001) did not react for 10 s and was killed")


def test_a_collector_that_was_stopped_from_outside_costs_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    freeze(monkeypatch, "collector-0")
    with Stage("learner-0", "collector-0") as stage:
        script = {0: lambda: stage.supervisor.stop(Stop.FINISH), 14: exit_of(stage, "learner-0")}
        assert stage.run(script) is None
        assert stage.processes["collector-0"].code == -signal.SIGKILL


def test_a_collector_that_waits_for_a_slow_learner_is_left_alone() -> None:
    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0].set(CollectorWord.IS_WAITING, 1)
        script = {
            0: lambda: stage.supervisor.stop(Stop.FINISH),
            25: exit_of(stage, "learner-0"),
            27: lambda: stage.follow("collector-0"),
        }
        assert stage.run(script) is None
        assert stage.messages == []


def test_a_frozen_collector_for_which_all_wait_is_the_one_to_blame_and_the_learner_can_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freeze(monkeypatch, "collector-0")
    with Stage("learner-0", "collector-0") as stage:
        stage.control.collectors[0].set(CollectorWord.IS_WAITING, 1)
        stage.control.leader.set(RankWord.IS_WAITING, 1)
        failure = stage.run({20: exit_of(stage, "learner-0")})
        assert stage.processes["learner-0"].code == 0
    assert failure is not None
    assert (failure.role, failure.exit_code) == ("collector", 70)
    assert failure.cause == "the others waited for it, which a signal had stopped, for 10 s"


@pytest.mark.parametrize("frozen", ["learner-0", "learner-1"])
def test_the_process_that_outlives_the_deadline_of_a_stop_is_the_one_to_blame(
    monkeypatch: pytest.MonkeyPatch, frozen: str
) -> None:
    freeze(monkeypatch, frozen, among=("learner-0", "learner-1"))
    with Stage("learner-0", "learner-1") as stage:
        failure = stage.run({0: lambda: stage.supervisor.stop(Stop.FINISH)})
    assert failure is not None
    assert (failure.role, failure.index) == ("learner", int(frozen[-1]))


def test_half_way_through_a_stop_a_busy_collector_is_killed_without_a_failure() -> None:
    with Stage("learner-0", "collector-0") as stage:
        script = {0: lambda: stage.supervisor.stop(Stop.FINISH), 40: exit_of(stage, "learner-0")}
        assert stage.run(script) is None
        assert stage.processes["collector-0"].code == -signal.SIGKILL


def test_a_pause_of_everything_extends_the_deadline_of_a_stop() -> None:
    def pause() -> None:
        stage.now_s += 1000.0

    with Stage("learner-0") as stage:
        script = {0: lambda: stage.supervisor.stop(Stop.FINISH), 10: pause, 50: exit_of(stage, "learner-0")}
        assert stage.run(script) is None


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_the_first_signal_stops_the_run_in_order(number: signal.Signals, code: int) -> None:
    with Stage("learner-0") as stage:
        assert stage.run({0: lambda: os.kill(os.getpid(), number), 5: exit_of(stage, "learner-0")}) is None
        assert (stage.supervisor.signal_code, stage.stop_level()) == (code, Stop.EXIT)


def test_a_signal_is_reported_once_and_before_the_next_tick() -> None:
    with Stage("learner-0") as stage:
        reported: list[float] = []
        script = {
            3: lambda: os.kill(os.getpid(), signal.SIGINT),
            4: lambda: os.kill(os.getpid(), signal.SIGTERM),
            6: exit_of(stage, "learner-0"),
        }
        assert stage.run(script, on_signal=lambda: reported.append(stage.now_s)) is None
        assert reported == [104.0]  # the tick that sent it began at 104


def test_a_signal_ends_the_wait_for_the_next_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offpolicy.processes.supervisor.TICK_S", 10.0)
    begun_s, reported = time.monotonic(), list[float]()
    with Stage("learner-0") as stage:

        def answer() -> None:
            reported.append(time.monotonic() - begun_s)
            stage.processes["learner-0"].exit(0)

        sender = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        end = threading.Timer(1.0, lambda: stage.processes["learner-0"].exit(0) if not reported else None)
        for timer in (sender, end):
            timer.start()
        stage.run(on_signal=answer)
        for timer in (sender, end):
            timer.join()
    assert reported
    assert 0.2 <= reported[0] < 0.4


def test_usr1_asks_the_learner_for_a_checkpoint_and_the_run_goes_on() -> None:
    with Stage("learner-0") as stage:
        stopped = list[int]()
        script = {
            1: lambda: os.kill(os.getpid(), signal.SIGUSR1),
            4: lambda: stopped.append(stage.stop_level()),
            6: exit_of(stage, "learner-0"),
        }
        assert stage.run(script) is None
        assert (stage.control.host.get(HostWord.SAVE_REQUEST), stopped) == (1, [Stop.RUN])
        assert stage.supervisor.signal_code == 0


def test_two_interrupts_at_almost_the_same_time_are_one() -> None:
    def interrupt_twice() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            stage.now_s += 0.02

    with Stage("learner-0") as stage:
        assert stage.run({0: interrupt_twice, 5: exit_of(stage, "learner-0")}) is None
        assert stage.processes["learner-0"].code == 0


def test_a_second_interrupt_kills_at_once() -> None:
    with Stage("learner-0") as stage:
        interrupt = {tick: lambda: os.kill(os.getpid(), signal.SIGINT) for tick in (0, 5)}
        assert stage.run(interrupt) is None
        assert stage.processes["learner-0"].code == -signal.SIGKILL
        assert stage.supervisor.signal_code == 130


def test_leaving_the_context_kills_what_is_left_and_restores_the_handlers() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with Stage("learner-0") as stage:
        assert signal.getsignal(signal.SIGTERM) != handler
    assert stage.processes["learner-0"].code == -signal.SIGKILL
    assert signal.getsignal(signal.SIGTERM) == handler


def test_a_collector_that_cannot_be_started_again_lets_the_learner_save_and_is_named_after_its_death() -> None:
    with Stage("learner-0", "collector-0", restarts=RestartPolicy(2)) as stage:
        stage.refused.add("collector 0")
        levels: list[int] = []
        failure = stage.run({
            1: exit_of(stage, "collector-0", -9), 3: lambda: levels.append(stage.stop_level()),
            4: exit_of(stage, "learner-0"),
        })  # fmt: skip
        assert stage.processes["learner-0"].code == 0
    assert failure is not None
    assert (failure.role, failure.exit_code, levels) == ("collector", 1, [Stop.FINISH])
    assert failure.cause == "collector 0 cannot be started: Cannot allocate memory"
    ((_, told),) = stage.messages
    assert told["text"] == f"collector 0 (pid 1001) died at env step 0: {KILLED}; restart 1 of at most 2"


def test_a_learner_rank_that_cannot_be_started_again_ends_the_run() -> None:
    with Stage("learner-0", "learner-1", "collector-0", learner_restarts=2) as stage:
        stage.refused.add("learner 1")
        failure = stage.run({1: exit_of(stage, "learner-1", -9), 20: lambda: stage.follow("collector-0")})
        assert stage.processes["learner-0"].code == -signal.SIGKILL  # started, but it would wait for the other one
    assert failure is not None
    assert (failure.role, failure.index, failure.cause) == (
        "learner", 1, "learner 1 cannot be started: Cannot allocate memory",
    )  # fmt: skip


def test_what_a_dead_process_has_left_behind_is_killed_before_another_one_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Stage("learner-0", "collector-0", "collector-1", restarts=RestartPolicy(2), learner_restarts=2) as stage:
        killed: list[tuple[str, bool]] = []

        def kill(known: set[int], of: str = "") -> int:
            others = {child.process.pid for child in stage.supervisor._children}
            killed.append((of, known == stage.supervisor._strangers | others))
            return 0

        monkeypatch.setattr(stage.supervisor._descendants, "kill", kill)
        script = {1: exit_of(stage, "collector-1", -9), 3: exit_of(stage, "learner-0", -9)}
        follow = {9: lambda: stage.follow("collector-0", "collector-1")}
        stage.run(script | {6: exit_of(stage, "learner-0")} | follow)
        assert killed == [("collector 1", True), ("learner 0", True)]
        monkeypatch.undo()


def test_a_process_that_the_kernel_holds_is_given_up_and_named() -> None:
    with Stage("learner-0", "collector-0") as stage:
        held = stage.processes["learner-0"]
        held.kill = lambda: None  # type: ignore[method-assign]

        def wait(timeout_s: float | None = None) -> int:
            raise subprocess.TimeoutExpired("held", timeout_s or 0.0)

        held.wait = wait  # type: ignore[method-assign]
        failure = stage.run({0: lambda: stage.supervisor.stop(Stop.FINISH)})
        assert stage.processes["collector-0"].code == -signal.SIGKILL
    assert failure is not None
    assert (failure.role, failure.exit_code) == ("learner", 70)


def test_a_refusal_of_the_machine_leaves_no_descriptor_and_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFPOLICY_FAULT", "spawn:EAGAIN")
    with Stage() as stage:
        before = sorted(os.listdir("/proc/self/fd"))
        fault.arm("supervisor")
        with pytest.raises(StartError, match="collector 3 cannot be started: Resource temporarily unavailable"):
            Supervisor.spawn(stage.supervisor, Start("collector", 3, "module:main", {}, {}))
        monkeypatch.delenv("OFFPOLICY_FAULT")
        fault.arm("supervisor")
        assert sorted(os.listdir("/proc/self/fd")) == before
