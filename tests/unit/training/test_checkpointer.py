"""When a checkpoint is saved, who saves in which order, and what a failure on one rank means for the others."""

from __future__ import annotations

import contextlib
import errno
import time
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore
from offpolicy.distributed.host_info import HostInfo
from offpolicy.errors import NumericsError, PeerSaveError, SaveError
from offpolicy.processes.control_page import CollectorWord, HostWord
from offpolicy.training.checkpointer import Checkpointer
from offpolicy.training.rank import Rank
from offpolicy.training.worker import SNAPSHOT_DIR
from tests.unit.training.conftest import FakeWorld, MakeRank, run_if_due

TENSORS = {"actor": torch.zeros(1)}


class FakeState:
    """Writes an empty file in place of streams and networks; `error` is raised instead, if there is one.

    What it captured is written once `may_write` is set.
    """

    def __init__(self, rank: Rank, world: FakeWorld) -> None:
        self.rank, self.world = rank, world
        self.has_diverged = False
        self.learner = SimpleNamespace(
            num_updates=0, has_diverged=lambda: self.has_diverged, is_origin=lambda: True, tensors=lambda: TENSORS
        )
        self.start, self.rings = SimpleNamespace(checkpoint=None), ()
        self.error: SaveError | None = None
        self.eval_steps: list[int] = []
        self.may_write = Event()
        self.may_write.set()

    def write_streams(self, directory: Path) -> None:
        if self.error is not None:
            raise self.error
        (directory / f"rank-{self.rank.rank}.json").write_text("{}")

    def capture(self, progress: tuple[int, int, int], rows: Any, parts: list[Path], signals: int) -> Any:
        self.eval_steps.append(progress[2])

        def write(draft: Any, _: object) -> None:
            assert self.may_write.wait(10.0)
            self.write_streams(draft.path)
            draft.add_json("state", {"has_replay": rows is not None})

        return SimpleNamespace(
            rows=rows, write=write, progress=progress, env_steps=progress[0], parts=parts, signals=signals
        )


class SaveWorld(FakeWorld):
    """The other rank of two, by its votes: collectors are missing, something is new, it has failed in each turn."""

    def __init__(self, *votes: float) -> None:
        said = iter(votes)
        super().__init__(2, lambda own: [own.copy() if len(own) == 3 else np.array([next(said)])])


def checkpointer(rank: Rank, world: FakeWorld | None = None) -> tuple[FakeWorld, Checkpointer, FakeState]:
    """With the env steps of a last save, 50."""
    world = world or FakeWorld()
    state: Any = FakeState(rank, world)
    leave_snapshots(rank)
    world.env_steps = 50
    return world, Checkpointer(state, lambda: 30), state


def saving_every_100(make_rank: MakeRank) -> tuple[Rank, FakeWorld, Checkpointer, FakeState]:
    rank = make_rank()
    object.__setattr__(rank.cfg.checkpoint, "every", 100)
    return rank, *checkpointer(rank)


def last_saved(rank: Rank, saver: Checkpointer, *, is_complete: bool) -> set[str]:
    """The files of the last save, after which no part of it is left."""
    saver.run_last(is_complete=is_complete)
    assert list(Path(rank.job.run_dir).glob(f"{SNAPSHOT_DIR}*")) == []
    return {path.name for path in (Path(rank.job.run_dir) / CHECKPOINTS).glob("step-000000000050/*")}


def go_on(saver: Checkpointer, world: FakeWorld) -> None:
    """An iteration in which nothing is asked for: what is being written is written."""
    world.is_saving = False
    assert not saver.is_due()
    saver.run()


def fail_to_save(rank: Rank, *votes: float) -> None:
    """The last save, at env step 50, of a rank whose `peer` fails."""
    _, saver, _ = checkpointer(rank, SaveWorld(*votes))
    with pytest.raises(PeerSaveError):
        saver.run_last(is_complete=True)


def leave_snapshots(rank: Rank) -> None:
    for index in range(rank.cfg.collect.num_collectors):
        leave_part(rank, f"collector-{index}")


def leave_part(rank: Rank, name: str) -> Path:
    """The directory in which another process leaves its part of a checkpoint."""
    directory = Path(rank.job.run_dir) / f"{SNAPSHOT_DIR}-{name}"
    directory.mkdir(exist_ok=True)
    (directory / f"{name}.json").write_text("{}")
    return directory


def messages(rank: Rank) -> list[tuple[str, dict[str, Any]]]:
    """What the rank has sent, but for what the panel shows meanwhile."""
    sent: list[tuple[str, dict[str, Any]]] = rank.child.sent  # type: ignore[attr-defined]  # a fake child
    return [message for message in sent if message[0] != "activity"]


def saved(rank: Rank) -> list[str]:
    return sorted(path.name for path in (Path(rank.job.run_dir) / CHECKPOINTS).glob("step-*"))


def test_a_checkpoint_is_due_at_every_multiple_passed(make_rank: MakeRank) -> None:
    rank, world, saver, state = saving_every_100(make_rank)
    for world.env_steps in (90, 120, 180):
        run_if_due(saver)
    saver.close()
    assert saved(rank) == ["step-000000000120"]
    assert state.eval_steps == [30]
    assert messages(rank) == [("checkpoint", {"env_steps": 120, "signals": 0})]
    assert rank.gate.num_releases == 1  # type: ignore[attr-defined]  # a fake gate


@pytest.mark.parametrize(("updates", "num_saves"), [(7, 1), (8, 2)])
def test_the_last_one_is_saved_again_only_with_something_new_in_it(
    make_rank: MakeRank, updates: int, num_saves: int
) -> None:
    rank, world, saver, state = saving_every_100(make_rank)
    world.env_steps, state.learner.num_updates = 100, 7
    run_if_due(saver)
    go_on(saver, world)
    leave_snapshots(rank)  # the collectors write their parts before the env steps are known
    state.learner.num_updates = updates
    saver.run_last(is_complete=False)
    saver.close()
    assert len(state.eval_steps) == num_saves
    assert list(Path(rank.job.run_dir).glob(f"{SNAPSHOT_DIR}*")) == []


@pytest.mark.promise("nan-never-trained")
def test_networks_that_have_diverged_are_not_saved(make_rank: MakeRank) -> None:
    rank = make_rank()
    _, saver, state = checkpointer(rank)
    state.has_diverged = True
    with pytest.raises(NumericsError):
        saver.run_last(is_complete=True)
    assert saved(rank) == []


def test_a_checkpoint_holds_the_collectors_parts_and_leaves_none_behind(make_rank: MakeRank) -> None:
    rank = make_rank(collect={"num_collectors": 2})
    _, saver, _ = checkpointer(rank)
    names = last_saved(rank, saver, is_complete=True)
    assert {"collector-0.json", "collector-1.json", "rank-0.json", "state.json"} <= names


def test_a_collector_that_could_not_save_is_named_with_what_the_disk_refused(make_rank: MakeRank) -> None:
    rank = make_rank(collect={"num_collectors": 2})
    _, saver, _ = checkpointer(rank)
    rank.control.collectors[1][CollectorWord.SNAPSHOT_ERRNO] = errno.ENOSPC
    with pytest.raises(SaveError, match="collector-1 could not save its part: No space left on device"):
        saver.run_last(is_complete=True)
    assert saved(rank) == []


@pytest.mark.promise("full-disk")
def test_a_full_disk_costs_a_warning_in_between_and_the_run_at_its_end(make_rank: MakeRank) -> None:
    rank, world, saver, state = saving_every_100(make_rank)
    state.error = SaveError("no space left on device")
    world.env_steps = 100
    run_if_due(saver)
    saver.close()
    (warning,) = messages(rank)
    assert warning == ("warning", {"text": "checkpoint at 100 not saved: no space left on device"})
    leave_snapshots(rank)
    with pytest.raises(SaveError, match="no space left"):
        saver.run_last(is_complete=True)
    assert saved(rank) == []
    assert rank.gate.num_releases == 2  # type: ignore[attr-defined]  # the collectors never stay held


def test_saves_that_fail_one_after_the_other_are_warned_of_once_and_the_next_good_one_is_noted(
    make_rank: MakeRank,
) -> None:
    rank, world, saver, state = saving_every_100(make_rank)
    full = SaveError("no space left on device")
    for world.env_steps, state.error in ((100, full), (200, full), (300, None), (400, full)):
        leave_snapshots(rank)
        run_if_due(saver)
        go_on(saver, world)
    saver.close()
    assert [(kind, fields.get("text")) for kind, fields in messages(rank)] == [
        ("warning", "checkpoint at 100 not saved: no space left on device"),
        ("note", "checkpoint at 300 saved: the disk takes them again"),
        ("checkpoint", None),
        ("warning", "checkpoint at 400 not saved: no space left on device"),
    ]


@pytest.mark.promise("ranks-together")
def test_a_rank_whose_peer_cannot_save_does_not_either(make_rank: MakeRank) -> None:
    rank = make_rank()
    fail_to_save(rank, 0, 1, 1)  # snapshots are there, something is new; then the peer fails
    assert saved(rank) == []


def test_rank_0_commits_only_what_all_other_hosts_have(make_rank: MakeRank) -> None:
    rank = make_rank(host=HostInfo(num_hosts=2))
    fail_to_save(rank, 0, 0, 0, 0, 1)  # the peer fails to commit, which is its turn before that of rank 0
    assert saved(rank) == []


@pytest.mark.parametrize(
    ("saves", "kept"),
    [
        ([(10, True), (20, False), (30, False), (40, True)], [[10], [10, 20], [10, 30], [10, 40]]),
        # The second save at 20 replaces what all hosts have: it stays when the next one fails, too.
        ([(20, True), (20, False), (30, False)], [[20], [20], [20, 30]]),
    ],
)
def test_a_checkpoint_that_rank_0_could_not_make_is_replaced_by_the_next_on_the_other_hosts(
    saves: list[tuple[int, bool]], kept: list[list[int]], make_rank: MakeRank
) -> None:
    """They kept one more at each try, which then counted among those to keep, although no other host had it."""
    rank = make_rank(host=HostInfo(index=1, num_hosts=2))
    world = SaveWorld(*(vote for _, is_made in saves for vote in (0, 1, 0, 0, 0, not is_made)))
    _, saver, _ = checkpointer(rank, world)
    found = []
    for world.env_steps, _ in saves:
        leave_snapshots(rank)
        with contextlib.suppress(PeerSaveError):
            saver.run_last(is_complete=True)
        found.append([int(name.removeprefix("step-")) for name in saved(rank)])
    assert found == kept


def test_what_another_host_lacked_before_a_restart_is_none_of_those_to_keep(make_rank: MakeRank) -> None:
    """This host had saved 180 and 200 when the other died; both go on from 100, and the next save is of 150."""
    rank = make_rank(start_step=100, host=HostInfo(index=1, num_hosts=2), checkpoint={"keep": 2})
    for env_steps in (100, 180, 200):  # it died again before it had removed what it had saved before
        with CheckpointStore(Path(rank.job.run_dir) / CHECKPOINTS).begin(env_steps, retires=False) as draft:
            draft.add_json("state", {})
    world = FakeWorld(2, lambda own: [np.zeros_like(own)])
    _, saver, _ = checkpointer(rank, world)
    found = []
    for world.env_steps in (150, 170, 210):
        leave_snapshots(rank)
        saver.run_last(is_complete=True)
        found.append([int(name.removeprefix("step-")) for name in saved(rank)])
    assert found == [[100, 150], [150, 170], [170, 210]]


def test_collectors_that_never_started_leave_the_old_checkpoint_the_newest(make_rank: MakeRank) -> None:
    rank = make_rank(start_step=50)
    _, saver, state = checkpointer(rank)
    rank.gate.has_snapshot = False  # type: ignore[attr-defined]  # a fake gate
    assert last_saved(rank, saver, is_complete=False) == set()
    assert (saved(rank), state.eval_steps) == ([], [])


def test_without_a_collector_the_parts_of_the_other_ranks_are_saved_all_the_same(make_rank: MakeRank) -> None:
    """Without them a resumed run skips the rows that no normaliser has seen."""
    rank = make_rank(runner={"name": "multi_gpu", "world_size": 2})
    _, saver, _ = checkpointer(rank)
    rank.gate.has_snapshot = False  # type: ignore[attr-defined]  # a fake gate
    leave_part(rank, "rank-1")
    names = last_saved(rank, saver, is_complete=False)
    assert {"rank-0.json", "rank-1.json"} <= names
    assert "collector-0.json" not in names


def test_the_loop_goes_on_while_a_checkpoint_is_written_and_the_collectors_with_it(make_rank: MakeRank) -> None:
    rank, world, saver, state = saving_every_100(make_rank)
    state.may_write.clear()
    world.env_steps = 100
    run_if_due(saver)  # returns, although nothing can be written
    assert rank.gate.num_releases == 1  # type: ignore[attr-defined]  # a fake gate
    world.env_steps = 110
    assert not saver.is_due()
    assert saved(rank) == []
    state.may_write.set()
    saver.close()
    assert saved(rank) == ["step-000000000100"]
    assert rank.child.sent == [("checkpoint", {"env_steps": 100, "signals": 0})]  # type: ignore[attr-defined]  # a fake child


def test_a_request_is_answered_once_and_not_while_another_save_is_written(make_rank: MakeRank) -> None:
    rank = make_rank()
    object.__setattr__(rank.cfg.checkpoint, "every", 0)
    world, saver, state = checkpointer(rank)
    state.may_write.clear()
    world.env_steps, world.is_saving = 7, True
    run_if_due(saver)
    world.env_steps = 9
    assert not saver.is_due()  # the first one is not written yet
    world.is_saving = False
    state.may_write.set()
    deadline_s = time.monotonic() + 10.0
    while not saver.is_due():
        assert time.monotonic() < deadline_s
    leave_snapshots(rank)
    saver.run()
    assert not saver.is_due()
    saver.close()
    assert saved(rank) == ["step-000000000007", "step-000000000009"]


def test_a_request_with_nothing_new_since_the_last_save_is_answered_by_that_one(make_rank: MakeRank) -> None:
    rank = make_rank()
    world, saver, state = checkpointer(rank)
    world.env_steps, world.is_saving = 7, True
    run_if_due(saver)
    go_on(saver, world)
    rank.control.host[HostWord.SAVE_SIGNALS] = 1
    world.is_saving = True
    leave_snapshots(rank)
    run_if_due(saver)
    saver.close()
    answers = [("checkpoint", {"env_steps": 7, "signals": signals}) for signals in (0, 1)]
    assert (len(state.eval_steps), messages(rank)) == (1, answers)


def test_a_signal_that_comes_during_a_save_is_not_answered_by_it(make_rank: MakeRank) -> None:
    rank = make_rank()
    world, saver, state = checkpointer(rank)
    state.may_write.clear()
    world.env_steps, world.is_saving = 7, True
    run_if_due(saver)
    rank.control.host[HostWord.SAVE_SIGNALS] = 1
    state.may_write.set()
    saver.close()
    assert messages(rank) == [("checkpoint", {"env_steps": 7, "signals": 0})]


def test_the_loop_waits_for_a_save_whose_rows_the_collectors_would_overwrite(make_rank: MakeRank) -> None:
    rank, world, saver, state = saving_every_100(make_rank)
    capture = state.capture
    nearly_recycled = SimpleNamespace(ring=SimpleNamespace(oldest=2), oldest=1, next=2, stop=3, spare=0)
    state.capture = lambda progress, _, *rest: capture(progress, [nearly_recycled], *rest)  # type: ignore[method-assign]
    state.may_write.clear()
    world.env_steps = 100
    run_if_due(saver)
    world.env_steps = 110
    assert saver.is_due()
    state.may_write.set()
    saver.run()  # waits, and saves no other one
    assert saved(rank) == ["step-000000000100"]
    assert state.eval_steps == [30]


def test_an_error_that_is_not_the_disks_ends_the_run(make_rank: MakeRank) -> None:
    rank, world, saver, state = saving_every_100(make_rank)
    state.write_streams = lambda directory: 1 / 0  # type: ignore[method-assign,assignment]
    world.env_steps = 100
    run_if_due(saver)
    with pytest.raises(ZeroDivisionError):
        saver.close()
