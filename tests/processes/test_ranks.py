"""Two or three learner ranks as real processes, joined by gloo.

What they compute together, agree on, and say of each other.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.processes.conftest import REPOSITORY
from tests.processes.rank_checks import LOSS_TIMEOUT_S

pytestmark = pytest.mark.mp
Answer = dict[str, Any]


def start_ranks(what: str, directory: Path, num_ranks: int = 2) -> list[subprocess.Popen[bytes]]:
    """Ranks whose store rank 0 serves on a socket that is bound here, as the supervisor does it."""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fd, port = listener.fileno(), listener.getsockname()[1]
        return [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.processes.rank_checks", what),
                    *(str(rank), str(num_ranks), str(fd), str(port), str(directory / f"{rank}.json")),
                ],
                pass_fds=(fd,) if rank == 0 else (),
                env=environ,
            )
            for rank in range(num_ranks)
        ]


def finish(processes: list[subprocess.Popen[bytes]], timeout_s: float = 90.0) -> list[int]:
    """The exit codes; whoever is still there is killed."""
    try:
        return [process.wait(timeout_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Answer]]:
    """What the two ranks found in each check."""
    directory = tmp_path_factory.mktemp("pair")
    assert finish(start_ranks("check", directory)) == [0, 0]
    first, second = (json.loads((directory / f"{rank}.json").read_text()) for rank in (0, 1))
    return {name: [first[name], second[name]] for name in first}


@pytest.mark.promise("cpu-ranks")
def test_two_halves_of_a_batch_give_the_gradients_of_the_whole(answers: Any) -> None:
    for answer in (rank[name] for rank in answers["averaged gradients"] for name in ("td3", "sac")):
        together, alone, half = answer["together"], answer["alone"], answer["alone on its half"]
        assert together.keys() == alone.keys()
        for tensor in together:
            np.testing.assert_allclose(together[tensor], alone[tensor], rtol=0.0, atol=1e-6, err_msg=tensor)
        # Negative control: half of the rows alone gives other gradients.
        assert max(np.abs(np.subtract(half[tensor], alone[tensor])).max() for tensor in alone) > 1e-4


@pytest.mark.promise("ranks-together")
def test_after_many_updates_on_different_rows_the_ranks_are_equal_bit_for_bit(answers: Any) -> None:
    for name in ("td3", "sac"):
        first, second = (rank[name] for rank in answers["many updates"])
        assert first["bits"] == second["bits"]
        assert first["checksum"] == second["checksum"]
        unmoved = {tensor for tensor, was in first["start"].items() if first["bits"][tensor] == was}
        assert unmoved == {"diverged"}


def test_the_normaliser_of_all_ranks_has_seen_the_rows_of_each_once(answers: Any) -> None:
    for check in ("normalised", "normalised by one"):
        first, second = answers[check]
        assert first["bits"] == second["bits"]
        assert first["checksum"] == second["checksum"]
        assert first["seen"]["count"] == first["expected"]["count"] > 0
        for name in ("mean", "var"):
            np.testing.assert_allclose(first["seen"][name], first["expected"][name], rtol=0.0, atol=1e-9)


@pytest.mark.promise("ranks-together")
def test_all_ranks_start_from_rank_0(answers: Any) -> None:
    first, second = answers["common start"]
    assert first["before"] != second["before"]
    assert first["after"] == second["after"] == first["before"]


@pytest.mark.promise("ranks-together", "nan-never-trained")
def test_a_nan_of_one_rank_makes_all_refuse_the_same_step_and_is_traced_to_it(answers: Any) -> None:
    for name in ("td3", "sac"):
        first, second = (rank[name] for rank in answers["poisoned"])
        assert first == {"is untouched": True, "has_diverged": True, "is_origin": False}
        assert second == {"is untouched": True, "has_diverged": True, "is_origin": True}


def losses(what: str, tmp_path: Path, survivors: tuple[int, ...], num_ranks: int = 2) -> list[Answer]:
    """What each survivor says when another rank ends like that."""
    processes = start_ranks(what, tmp_path, num_ranks)
    try:
        assert [processes[survivor].wait(60.0) for survivor in survivors] == [0] * len(survivors)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads((tmp_path / f"{survivor}.json").read_text()) for survivor in survivors]


@pytest.mark.promise("no-hang", "last-words")
def test_the_death_of_a_rank_is_named(tmp_path: Path) -> None:
    [answer] = losses("die-1", tmp_path, (0,))
    assert "lost rank 1: it died" in answer["error"]


@pytest.mark.promise("no-hang", "last-words")
def test_a_frozen_rank_is_named(tmp_path: Path) -> None:
    """Rank 0, which serves the store."""
    [answer] = losses("freeze-0", tmp_path, (1,))
    assert "rank 0" in answer["error"]


@pytest.mark.slow
@pytest.mark.parametrize(("loser", "words"), [(0, ", or whatever else keeps the ranks' store"), (1, "")])
def test_a_rank_that_freezes_before_the_ranks_have_met_is_named_by_both_others(
    tmp_path: Path, loser: int, words: str
) -> None:
    """Rank 0 serves the store, in which the others look for its address."""
    others = (1, 2) if loser == 0 else (0, 2)
    for answer in losses(f"freeze-{loser}-joining", tmp_path, others, num_ranks=3):
        assert f"lost rank {loser}{words}: it died" in answer["error"]
        assert LOSS_TIMEOUT_S - 0.5 < answer["took_s"] < LOSS_TIMEOUT_S + 6.0
