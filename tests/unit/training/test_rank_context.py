"""A learner rank's place among all ranks, its random streams and its device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from offpolicy.distributed.host_info import HostInfo
from offpolicy.errors import ConfigError
from offpolicy.processes.control_page import HostWord, RankWord, Stop
from offpolicy.timing.trace_writer import create_tracks
from offpolicy.training.rank_context import RankContext, is_crowded, pick_device, set_up_device, unused_gpu
from tests.unit.training.conftest import MakeRank

TWO_RANKS = {"runner": {"name": "multi_gpu", "world_size": 2}}


def test_ranks_count_over_all_hosts(make_rank: MakeRank) -> None:
    rank = make_rank(index=1, host=HostInfo(index=2, num_hosts=3), **TWO_RANKS)
    assert (rank.rank, rank.num_ranks, rank.is_leader) == (5, 6, False)
    assert make_rank(host=HostInfo(index=2, num_hosts=3), **TWO_RANKS).is_leader


def test_every_rank_and_every_resume_has_its_own_random_streams(make_rank: MakeRank) -> None:
    contexts = [make_rank(index=i, start_step=step, **TWO_RANKS) for i in (0, 1) for step in (0, 400, 800)]
    assert len({context.learner_seed for context in contexts}) == 6
    assert len({int(context.replay_generator().integers(2**62)) for context in contexts}) == 6


def test_each_rank_takes_every_rth_collector(make_rank: MakeRank) -> None:
    tree = {**TWO_RANKS, "collect": {"num_collectors": 4}}
    assert [list(make_rank(index=i, **tree).own_collectors()) for i in (0, 1)] == [[0, 2], [1, 3]]


def test_asking_for_a_stop_counts_as_progress(make_rank: MakeRank) -> None:
    rank = make_rank()
    assert not rank.is_stopping()
    rank.control.host.set(HostWord.STOP, Stop.FINISH)
    assert rank.is_stopping()
    assert rank.words.get(RankWord.PROGRESS) == 2


def activities(rank: RankContext) -> list[str]:
    sent: list[tuple[str, dict[str, Any]]] = rank.child.sent  # type: ignore[attr-defined]  # a fake
    return [fields["text"] for kind, fields in sent if kind == "activity"]


def test_the_first_rank_says_what_it_does_and_when_it_is_done(make_rank: MakeRank) -> None:
    rank = make_rank()
    with rank.activity("evaluating"):
        assert activities(rank) == ["evaluating"]
    with pytest.raises(ZeroDivisionError), rank.activity("saving"):
        _ = 1 / 0
    assert activities(rank) == ["evaluating", "", "saving", ""]


def test_other_ranks_do_not_say_it_again(make_rank: MakeRank) -> None:
    rank = make_rank(index=1, **TWO_RANKS)
    with rank.activity("saving"):
        pass
    assert activities(rank) == []


@pytest.mark.parametrize(
    ("name", "local_rank", "count", "device"),
    [("auto", 1, 0, "cpu"), ("cpu", 0, 2, "cpu"), ("auto", 1, 2, "cuda:1"), ("cuda:0", 1, 2, "cuda:0")],
)
def test_each_rank_of_a_host_gets_its_own_gpu_unless_one_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, local_rank: int, count: int, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    assert str(pick_device(name, local_rank)) == device


def test_a_gpu_that_torch_cannot_use_is_not_chosen_and_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is too old for this torch counts its devices all the same."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device = pick_device("auto", 0)
    assert device == torch.device("cpu")
    assert "torch cannot use the GPU" in unused_gpu(device, "auto")
    assert unused_gpu(device, "cpu") == ""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert unused_gpu(device, "auto") == ""


def test_a_rank_uses_no_other_gpu_than_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    set_up_device(torch.device("cpu"))
    assert (current, torch.backends.cudnn.allow_tf32) == ([], True)
    set_up_device(torch.device("cuda", 1))
    assert (current, torch.backends.cudnn.allow_tf32) == ([torch.device("cuda", 1)], False)


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match="device: got cuda for learner rank 2, allowed one of 2 CUDA devices"):
        pick_device("cuda", 2)
    with pytest.raises(ConfigError, match=f"device: got cuda:{10**20} for learner rank 0, allowed one of 2 CUDA"):
        pick_device(f"cuda:{10**20}", 0)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cpu:1", 0, None])
def test_what_names_no_device_is_refused(monkeypatch: pytest.MonkeyPatch, name: Any) -> None:
    """`eval --device gpu` took the first GPU, and `cuda:x` ended in a ValueError."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match=f"^device: got {name!r}, allowed auto, cpu, cuda or cuda:<index>$"):
        pick_device(name, 0)


@pytest.mark.parametrize(
    ("overrides", "num_busy"),
    [
        ({}, 2),
        ({"collect": {"num_collectors": 3}}, 4),
        ({"runner": {"name": "multi_gpu", "world_size": 2}}, 3),
        ({"env": {"num_envs": 4, "vectorization": "async"}}, 6),
    ],
)
def test_a_wait_for_the_device_gives_its_core_away_where_there_is_none_to_spare(
    make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch, overrides: dict[str, Any], num_busy: int
) -> None:
    crowded = []
    for num_cores in (num_busy, num_busy + 1):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, count=num_cores: set(range(count)))
        crowded.append(is_crowded(make_rank(**overrides).cfg))
    assert crowded == [True, False]


def test_a_track_that_nobody_reserved_is_left_out_with_a_warning(make_rank: MakeRank, tmp_path: Path) -> None:
    """As on a machine whose GPU the supervisor does not see."""
    create_tracks(tmp_path / "0", ["packer-0"], 1)
    rank = make_rank()
    object.__setattr__(rank.job, "trace_dir", str(tmp_path / "0"))
    assert rank.open_track("packer", ("pack",), "packer 0") is not None
    assert rank.open_track("device", ("train",), "device 0, work") is None
    assert rank.child.sent == [  # type: ignore[attr-defined]  # a fake child
        ("warning", {"text": "timing.trace: no track of device 0, work: the device was not expected; set device=cuda"})
    ]
