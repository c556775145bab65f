"""The shared memory of a host: its size, and that processes attach to what the supervisor allocates."""

from __future__ import annotations

import errno
import gc
import os
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.processes.control_page import CollectorWord, HostWord
from offpolicy.processes.shared_memory import SharedBlock
from offpolicy.replay.rate_limiter import first_learning_step
from offpolicy.replay.rollout_ring import RolloutStamp
from offpolicy.timing.virtual_speedup import VirtualTimes
from offpolicy.training import run_memory
from offpolicy.training.run_memory import (
    RunMemory,
    allocated,
    check_memory,
    check_share,
    replay_nbytes,
    replay_rings,
    rollout_layout,
    rollout_ring,
    thread_delays,
    transport_name,
    transport_nbytes,
    wake_event_names,
    weights_mailbox,
)
from offpolicy.types import SpaceSpec
from tests.unit.training.conftest import MakeRank

LARGE_SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6)
SPEC = SpaceSpec(4, 2, (-1.0, -1.0), (1.0, 1.0))
SMALL: dict[str, Any] = {"replay": {"capacity": 512}, "algo": {"batch_size": 8, "learning_starts": 8}}


def memory(*, has_evaluator: bool = False, **tree: Any) -> RunMemory:
    return RunMemory(RunConfig.from_mapping(tree), SPEC, 1, has_evaluator=has_evaluator)


def test_every_collector_has_a_ring_a_report_and_episodes() -> None:
    blocks = memory(**SMALL, collect={"num_collectors": 2}).blocks
    expected = {f"{kind}-{index}" for kind in ("replay", "collector_report", "episodes") for index in (0, 1)}
    assert set(blocks) == expected | {"control", "weights", "learner_report"}


@pytest.mark.parametrize(
    ("announced", "died_after", "expected"),
    [
        (6, "row", 8),  # both rows of the last vector step
        (8, "row", 8),  # announced since
        (6, "copy", 6),  # not committed: nobody can read them
        (7, "start", 7),  # env steps of n-step rows that were still open
    ],
)
def test_rows_of_a_gone_collector_that_it_did_not_announce_are_counted(
    announced: int, died_after: str, expected: int
) -> None:
    held = memory(**SMALL, collect={"num_collectors": 2})
    ring = held.rings[1]
    rows = np.zeros((2, ring.width), np.float32)
    ring.begin(4)
    if died_after != "start":
        ring.append(rows, 6)
    if died_after == "row":
        ring.append(rows, 8)
    elif died_after == "copy":
        ring._words[3], ring._words[4], ring._words[0] = 4, 8, 4  # as `append` does before it copies
    assert held.env_steps_of(1, announced) == expected
    assert held.env_steps_of(0, 0) == 0


def test_a_rollout_of_a_gone_collector_that_it_did_not_announce_is_counted() -> None:
    held = memory(algo={"name": "appo"}, runner={"name": "appo"}, rollout={"length": 8})
    ring = held._rollout_rings[0]
    ring.reserve()
    ring.commit(RolloutStamp(0, 1, 8), 8)
    assert (held.env_steps_of(0, 7), held.env_steps_of(0, 9)) == (8, 9)


def test_too_few_files_are_refused_and_as_many_as_collectors_need_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[int] = []
    monkeypatch.setattr(run_memory, "allow_open_files", lambda more: (wanted.append(more) or more, 80))
    memory(**SMALL)
    with pytest.raises(ConfigError, match=r"ulimit -n: got 80 open files, allowed at least \d+ for .* ulimit -n \d+"):
        memory(**SMALL, collect={"num_collectors": 5})
    assert wanted[1] - wanted[0] == 4 * (2 * 3 + 1 + 2)  # blocks, wake event and process of each


@pytest.mark.parametrize(
    ("number", "said"), [(errno.EFBIG, "ulimit -f: got less"), (errno.ENOSPC, "replay.capacity: ")]
)
def test_memory_that_is_refused_is_named_with_what_limits_it(
    monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(ConfigError, match=said):
        memory(**SMALL)


def test_only_a_host_with_an_evaluator_has_its_blocks_and_wake_event() -> None:
    with_evaluator = memory(has_evaluator=True, **SMALL)
    assert {"evaluation", "evaluator_report"} <= set(with_evaluator.blocks)
    assert set(with_evaluator.wake_events) - set(memory(**SMALL).wake_events) == {"evaluator_wake"}


def test_every_waiting_thread_has_a_wake_event() -> None:
    cfg = RunConfig.from_mapping({"runner": {"name": "multi_gpu", "world_size": 2}, "collect": {"num_collectors": 2}})
    names = wake_event_names(cfg, has_evaluator=False)
    expected = {f"{role}_wake-{index}" for role in ("learner", "packer", "collector") for index in (0, 1)}
    assert set(names) == expected


def test_a_child_sees_the_rows_that_a_collector_writes(make_rank: MakeRank) -> None:
    owner, rank = memory(**SMALL), make_rank(**SMALL)
    rank.child.block = lambda name: owner.blocks[name].buffer  # type: ignore[method-assign]  # a fake child
    (ring,) = replay_rings(rank.child, rank.job)
    rows = np.arange(2 * ring.width, dtype=np.float32).reshape(2, -1)
    ring.append(rows)
    np.testing.assert_array_equal(owner.rings[0].read_range(0, 2), rows)


def test_a_run_on_rollouts_has_no_replay(make_rank: MakeRank) -> None:
    tree: dict[str, Any] = {"algo": {"name": "appo"}, "runner": {"name": "appo"}, "rollout": {"length": 8}}
    owner, rank = memory(**tree), make_rank(**tree)
    rank.child.block = lambda name: owner.blocks[name].buffer  # type: ignore[method-assign]  # a fake child
    assert (owner.rings, replay_rings(rank.child, rank.job)) == ([], [])
    rollout_ring(rank.child, rank.job, 0)


@pytest.mark.parametrize("name", ["control", "weights", "learner_report"])
def test_descriptors_are_passed_by_name(name: str) -> None:
    owner = memory(**SMALL)
    assert owner.fds[name] == owner.blocks[name].fd
    assert owner.fds["learner_wake-0"] == owner.wake_events["learner_wake-0"].fd


def config(**tree: object) -> RunConfig:
    return RunConfig.from_mapping(tree)


def test_the_replay_is_never_larger_than_the_run_can_fill() -> None:
    small = config(total_timesteps=5000)
    assert replay_nbytes(small, LARGE_SPEC) == 128 + 5083 * 4 * (17 + 6 + 3)


def test_collectors_share_the_capacity() -> None:
    cfg = config(replay={"capacity": 4001}, collect={"num_collectors": 2})
    assert (cfg.replay_rows, replay_nbytes(cfg, LARGE_SPEC)) == (2000, 2 * (128 + 2035 * 4 * (17 + 6 + 3)))


def test_a_device_copy_of_the_replay_has_a_stated_share() -> None:
    cfg = config(replay={"capacity": 4000, "device_share": 0.25})
    nbytes = replay_nbytes(cfg, LARGE_SPEC)
    check_share(cfg, LARGE_SPEC, "cuda:0", 4 * nbytes)
    with pytest.raises(
        ConfigError, match=r"replay\.source: resident needs .* on cuda:0, allowed replay\.device_share=0\.25"
    ):
        check_share(cfg, LARGE_SPEC, "cuda:0", 4 * nbytes, copies=2)


def test_a_replay_that_does_not_fit_is_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = config(total_timesteps=10**7, replay={"capacity": 1_000_000})
    needed = replay_nbytes(cfg, LARGE_SPEC)  # 0.10 GiB
    monkeypatch.setattr(run_memory, "available_memory", lambda: needed)
    with pytest.raises(ConfigError, match=r"^replay\.capacity: got 0\.10 GiB of replay.*0\.10 GiB available"):
        check_memory(cfg, LARGE_SPEC)
    monkeypatch.setattr(run_memory, "available_memory", lambda: 2 * needed)
    check_memory(cfg, LARGE_SPEC)


def appo(**tree: object) -> RunConfig:
    return config(algo={"name": "appo"}, runner={"name": "appo"}, **tree)


def test_rollouts_have_a_ring_per_collector_and_no_replay() -> None:
    cfg = appo(rollout={"length": 4, "slots": 2}, env={"num_envs": 8}, collect={"num_collectors": 3})
    layout = rollout_layout(cfg, LARGE_SPEC)
    assert (layout.shape, transport_name(cfg)) == ((5, 8, 17 + 6 + 5), "rollouts")
    assert transport_nbytes(cfg, LARGE_SPEC) == 3 * (64 + 3 * (4 * 5 * 8 * 28 + 24))
    assert transport_nbytes(config(total_timesteps=5000), LARGE_SPEC) == 128 + 5083 * 4 * (17 + 6 + 3)


def test_rollouts_that_do_not_fit_are_refused_with_the_key_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_memory, "available_memory", lambda: 100_000)
    with pytest.raises(ConfigError, match=r"^rollout\.length: got .* GiB of rollouts.*; lower rollout\.length"):
        check_memory(appo(rollout={"length": 1024}), LARGE_SPEC)
    check_memory(appo(rollout={"length": 8}), LARGE_SPEC)


def test_learning_from_rollouts_starts_with_one_of_every_collector() -> None:
    cfg = appo(rollout={"length": 16}, env={"num_envs": 4}, collect={"num_collectors": 2})
    assert [first_learning_step(cfg, num_hosts) for num_hosts in (1, 2)] == [128, 256]


def test_learning_never_starts_before_the_first_n_step_row_exists() -> None:
    cfg = config(algo={"learning_starts": 2, "n_step": 5}, env={"num_envs": 4})
    assert first_learning_step(cfg, num_hosts=1) == 20
    assert first_learning_step(cfg, num_hosts=2) == 40  # every ring of every host needs its first row


def test_weights_that_do_not_fit_are_refused_with_their_size(make_rank: MakeRank) -> None:
    def refuse(name: str, at_least: int) -> memoryview:
        raise OSError("No space left on device")

    rank = make_rank(**SMALL)
    rank.child.block = refuse  # type: ignore[method-assign, assignment]  # a fake child
    with pytest.raises(ConfigError, match=r"algo\.hidden_dims: .* MiB cannot be had for weights: No space left"):
        weights_mailbox(rank.child, 2**20)


def test_only_a_run_with_virtual_speedup_has_words_for_its_threads(make_rank: MakeRank) -> None:
    tree: dict[str, Any] = {**SMALL, "collect": {"num_collectors": 2}}
    assert "virtual_speedup" not in memory(**tree).blocks
    assert thread_delays(make_rank(**tree).child, RunConfig.from_mapping(tree), "learner-0") is None
    slowed = RunConfig.from_mapping({**tree, "timing": {"virtual_speedup": True}})
    blocks = RunMemory(slowed, SPEC, 1, has_evaluator=False).blocks
    assert len(blocks["virtual_speedup"].buffer) >= VirtualTimes.nbytes(4)
    child = make_rank(**tree).child
    for thread in ("learner-0", "packer-0", "collector-0", "collector-1"):
        delays = thread_delays(child, slowed, thread)
        assert delays is not None
        assert delays.offset_ns == 0


def test_a_kernel_that_takes_no_memory_back_needs_room_for_all_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = config(total_timesteps=10**6)
    monkeypatch.setattr(run_memory, "available_memory", lambda: int(1.5 * replay_nbytes(cfg, LARGE_SPEC)))
    check_memory(cfg, LARGE_SPEC)
    monkeypatch.setattr(run_memory, "gives_memory_back", lambda: False)
    with pytest.raises(ConfigError, match="replay.capacity"):
        check_memory(cfg, LARGE_SPEC)


def test_refused_memory_leaves_the_counts_for_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = memory(**SMALL)
    words = shared.control.collectors[0]
    words.set(CollectorWord.ENV_STEPS, 500)
    words.set(CollectorWord.RESTARTS, 3)

    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        shared.clear()
    assert (shared.control.env_steps, words.get(CollectorWord.RESTARTS)) == (500, 3)
    assert shared.rings[0].committed in (0, 1)  # and every block can be read


def test_cleared_memory_is_as_it_was_at_first() -> None:
    shared = memory(**SMALL)
    shared.rings[0].append(np.ones((3, shared.rings[0].width), np.float32))
    shared.control.host.set(HostWord.STOP, 2)
    words = shared.control.collectors[0]
    words.set(CollectorWord.HAS_BEGUN, 1)
    words.set(CollectorWord.RESTARTS, 3)
    shared.clear()
    assert (shared.rings[0].committed, shared.control.host.get(HostWord.STOP)) == (0, 0)
    assert words.get(CollectorWord.HAS_BEGUN) == 0
    assert words.get(CollectorWord.RESTARTS) == 3  # of the run: they never fall


def test_memory_that_is_closed_leaves_no_descriptor() -> None:
    """A program may start many runs, one after the other."""

    def run() -> None:
        with closing(memory(**SMALL, has_evaluator=True)) as held:
            held.control.collectors[0].set(CollectorWord.ENV_STEPS, 7)
        assert held.control.collectors[0].get(CollectorWord.ENV_STEPS) == 0, "the memory is given back at once"

    run()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    run()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_that_cannot_be_had_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(name: str, size: int, room: int) -> SharedBlock:
        if name == "second":
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return real(name, size, room)

    real = SharedBlock.create
    monkeypatch.setattr(SharedBlock, "create", create)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match="cannot be had"):
        allocated({"first": 4096, "second": 4096}, "replay.capacity", {})
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
