"""A learner rank's place among all ranks, its random streams, its device, and what joins it to the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from offpolicy.distributed.host_info import HostInfo
from offpolicy.errors import ConfigError
from offpolicy.processes.control_page import HostWord
from offpolicy.training.rank import Rank, new_requests, pick_backend, pick_device, unused_gpu
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


def activities(rank: Rank) -> list[str]:
    sent: list[tuple[str, dict[str, Any]]] = rank.child.sent  # type: ignore[attr-defined]  # a fake
    return [fields["text"] for kind, fields in sent if kind == "activity"]


def test_the_first_rank_says_what_it_does_and_when_it_is_done(make_rank: MakeRank) -> None:
    rank = make_rank()
    with rank.activity("evaluating"):
        assert activities(rank) == ["evaluating"]
    with pytest.raises(ZeroDivisionError), rank.activity("saving"):
        _ = 1 / 0
    assert activities(rank) == ["evaluating", "", "saving", ""]


def test_a_gpu_that_torch_cannot_use_is_not_chosen_and_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is too old for this torch counts its devices all the same."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device = pick_device("auto", 0)
    assert device == torch.device("cpu")
    assert "torch cannot use the GPU" in unused_gpu(device, "auto")
    assert unused_gpu(device, "cpu") == ""


@pytest.mark.parametrize(
    ("name", "local_rank", "num_gpus", "chosen", "refused"),
    [
        ("auto", 1, 0, "cpu", ""),
        ("cpu", 0, 2, "cpu", ""),
        ("auto", 1, 2, "cuda:1", ""),
        ("cuda:0", 1, 2, "cuda:0", ""),
        ("cuda", 2, 2, "", "device: got cuda for learner rank 2, allowed one of 2 CUDA devices"),
        (f"cuda:{10**20}", 0, 2, "", f"device: got cuda:{10**20} for learner rank 0, allowed one of 2 CUDA"),
        ("gpu", 0, 2, "", "device: got 'gpu', allowed auto, cpu, cuda or cuda:<index>$"),
        ("cuda:x", 0, 2, "", "device: got 'cuda:x', allowed auto, cpu, cuda or cuda:<index>$"),
    ],
)
def test_each_rank_has_its_own_gpu_unless_one_is_named_and_a_device_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, local_rank: int, num_gpus: int, chosen: str, refused: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
    if not refused:
        assert str(pick_device(name, local_rank)) == chosen
        return
    with pytest.raises(ConfigError, match=f"^{refused}"):
        pick_device(name, local_rank)


@pytest.mark.parametrize(
    ("host", "save_word"), [(HostInfo(), HostWord.SAVE_REQUEST), (HostInfo(1, 2), HostWord.SAVE_SIGNALS)]
)
def test_a_rank_answers_each_request_once(make_rank: MakeRank, host: HostInfo, save_word: HostWord) -> None:
    """The clock of the first host asks for checkpoints, and on every host a user may."""
    rank = make_rank(host=host, runner={"name": "multi_gpu"})
    requests, asked = new_requests(rank), []
    for reports, saves in ((0, 0), (1, 0), (1, 1), (2, 1)):
        rank.control.host[HostWord.REPORT_REQUEST] = reports
        rank.control.host[save_word] = saves
        asked.append(requests())
    assert asked == [(False, False), (True, False), (False, True), (True, False)]


def test_nccl_without_a_gpu_is_refused(make_rank: MakeRank) -> None:
    rank = make_rank(runner={"name": "multi_gpu", "backend": "nccl"}, device="auto")
    with pytest.raises(ConfigError, match="runner.backend: got nccl, allowed auto or gloo: the ranks train on cpu"):
        pick_backend(rank)
