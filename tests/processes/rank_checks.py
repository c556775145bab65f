"""One of several learner ranks: run with <what> <rank> <number of ranks> <store fd> <port> <answers>.

What it finds it writes as JSON to the file `answers`; test_ranks.py compares what the ranks found.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]  # exported without saying so

from offpolicy.algos.learner import Learner
from offpolicy.algos.registry import make_learner
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.distributed.process_group import (
    Arrivals,
    GroupExchange,
    ProcessGroup,
    bind_interface,
    checksum,
    open_store,
)
from offpolicy.distributed.world import World
from offpolicy.errors import PeerLostError
from offpolicy.processes.control_page import ControlPage
from offpolicy.timing.device_timer import StreamSync, make_device_timer
from offpolicy.timing.ledger import make_ledger
from offpolicy.timing.phases import LearnerPhase
from offpolicy.types import Batch, Batches
from tests.unit.algos.conftest import SPEC
from tests.unit.algos.conftest import random_batch as rows

CPU = torch.device("cpu")
NUM_RANKS = 2
Answer = dict[str, Any]


class Rank:
    """This process's place in the group, and learners of it."""

    def __init__(self, index: int, store: Store, timeout_s: float, num_ranks: int = NUM_RANKS) -> None:
        self.index = index
        self.ledger = make_ledger(LearnerPhase, is_enabled=True, opened_ns=time.perf_counter_ns())
        page = ControlPage(memoryview(bytearray(ControlPage.nbytes(num_ranks, 0))), num_ranks, 0)  # not shared
        arrivals = Arrivals(self.ledger, page.ranks, index, is_one_host=True)
        self.group = ProcessGroup(store, index, num_ranks, backend="gloo", timeout_s=timeout_s, arrivals=arrivals)
        timer = make_device_timer(StreamSync(CPU), self.ledger, is_enabled=True)
        self.exchange = GroupExchange(self.group, CPU, timer, self.ledger)

    def world(self) -> World:
        """This rank's side of the agreements."""
        gate: Any = None  # of collectors, which there are none of
        return World(gate, lambda: (False, False), self.ledger, self.exchange, self.group)

    def learner(self, seed: int = 1, **algo: Any) -> Learner:
        return make_learner(config(**algo), SPEC, CPU, seed, self.exchange)


def config(**algo: Any) -> AlgoConfig:
    return AlgoConfig(**{"hidden_dims": (16, 16), **algo})


def solo(**algo: Any) -> Learner:
    """The learner that is alone in the world, with the same initial weights."""
    return make_learner(config(**algo), SPEC, CPU, 1)


def one(batch: Batch, fresh_obs: Tensor | None = None) -> Batches:
    return Batches((batch,), fresh_obs)


def bits(tensors: Any) -> dict[str, str]:
    """The tensors bit for bit."""
    return {name: tensor.detach().numpy().tobytes().hex() for name, tensor in tensors.items()}


def shared(learner: Learner) -> Answer:
    tensors = learner.tensors()
    return {"bits": bits(tensors), "checksum": checksum(list(tensors.values()))}


BATCH = 256


@contextmanager
def common_noise(own: slice) -> Iterator[None]:
    """Deal these rows of one common noise [BATCH, A] at each call of torch that draws for an update."""
    randn, normal_, source = torch.randn, Tensor.normal_, torch.Generator().manual_seed(5)

    def dealt(shape: torch.Size, *, generator: torch.Generator, device: torch.device = CPU) -> Tensor:
        return randn((BATCH, shape[1]), generator=source)[own]

    def dealt_into(noise: Tensor, *, generator: torch.Generator) -> Tensor:
        return noise.copy_(randn((BATCH, noise.shape[1]), generator=source)[own])

    torch.randn, Tensor.normal_ = dealt, dealt_into  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.randn, Tensor.normal_ = randn, normal_  # type: ignore[method-assign]


def moments_after_one_update(learner: Learner, own: slice) -> dict[str, list[float]]:
    batch = Batch(*(field[own] for field in rows(0, BATCH)))
    with common_noise(own):
        learner.update(one(batch))
    tensors = learner.tensors()
    return {name: tensor.reshape(-1).tolist() for name, tensor in tensors.items() if ".exp_avg." in name}


def averaged_gradients(rank: Rank) -> Answer:
    """One update on this rank's half of the batch; by the ranks together, and alone on the whole batch."""
    size = BATCH // NUM_RANKS
    half, whole = slice(rank.index * size, (rank.index + 1) * size), slice(0, BATCH)
    return {
        name: {
            "together": moments_after_one_update(rank.learner(name=name), half),
            "alone": moments_after_one_update(solo(name=name), whole),
            "alone on its half": moments_after_one_update(solo(name=name), half),
        }
        for name in ("td3", "sac")
    }


def many_updates(rank: Rank) -> Answer:
    """20 updates of each algorithm, on rows of this rank's own."""
    answer: Answer = {}
    for name in ("td3", "sac"):
        learner = rank.learner(name=name, max_grad_norm=1.0)
        answer[name] = {"start": bits(learner.tensors())}
        for update in range(20):
            learner.update(one(rows(100 * rank.index + update)))
        answer[name] |= shared(learner)
    return answer


def observations(rank: int, update: int) -> Tensor:
    """What a rank shows the normaliser: another number of rows each time, from none to three."""
    generator = torch.Generator().manual_seed(1000 * rank + update)
    return 5.0 * torch.randn((update * (rank + 1)) % 4, SPEC.obs_dim, generator=generator) + 1.0


def normalised(rank: Rank, *, shown_by: tuple[int, ...]) -> Answer:
    """20 updates with a normaliser that sees the observations of some ranks, beside one that saw all of them alone."""
    learner = rank.learner(normalize_obs=True)
    reference = solo(normalize_obs=True)
    for update in range(20):
        blocks = [observations(index, update) for index in shown_by]
        own = blocks[shown_by.index(rank.index)] if rank.index in shown_by else torch.empty((0, SPEC.obs_dim))
        learner.update(one(rows(100 * rank.index + update), own))
        reference.update(one(rows(update), torch.cat(blocks)))
    seen, expected = learner.policy.normalizer, reference.policy.normalizer
    assert seen is not None
    assert expected is not None
    return {
        **shared(learner),
        "seen": {name: tensor.tolist() for name, tensor in seen.named_buffers()},
        "expected": {name: tensor.tolist() for name, tensor in expected.named_buffers()},
    }


def common_start(rank: Rank) -> Answer:
    """Learners of different seeds before and after they start from rank 0."""
    learner = rank.learner(seed=10 + rank.index)
    before = bits(learner.tensors())
    rank.world().broadcast(learner.tensors().values())
    return {"before": before, "after": bits(learner.tensors())}


def poisoned(rank: Rank) -> Answer:
    """Three updates, of which the second is fed a NaN on rank 1; the targets, which need no guard, are left out."""
    answer: Answer = {}
    for name in ("td3", "sac"):
        learner = rank.learner(name=name)
        learner.update(one(rows(rank.index)))
        guarded = {
            key: tensor
            for key, tensor in learner.tensors().items()
            if not key.startswith("target") and key != "diverged"
        }
        before = bits(guarded)
        bad = rows(2 + rank.index)
        if rank.index == 1:
            bad.reward[3] = float("nan")
        learner.update(one(bad))
        learner.update(one(rows(4 + rank.index)))
        answer[name] = {
            "is untouched": bits(guarded) == before,
            "has_diverged": learner.has_diverged(),
            "is_origin": learner.is_origin(),
        }
    return answer


CHECKS: dict[str, Callable[[Rank], Answer]] = {
    "averaged gradients": averaged_gradients, "many updates": many_updates,
    "normalised": lambda rank: normalised(rank, shown_by=(0, 1)),
    "normalised by one": lambda rank: normalised(rank, shown_by=(0,)), "common start": common_start,
    "poisoned": poisoned,
}  # fmt: skip
LOSS_TIMEOUT_S = 3.0


def check_all(rank: Rank) -> Answer:
    answer = {name: check(rank) for name, check in CHECKS.items()}
    rank.group.close()
    return answer


def lose(rank: Rank, loser: int, end: Callable[[], None]) -> Answer:
    """One rank ends; what the next collective of each other says, and how long it took."""
    rank.group.gather(torch.zeros(3))
    if rank.index == loser:
        end()
    answer = loss_in(lambda: rank.group.gather(torch.zeros(3)))
    rank.group.close()
    return answer


def lose_at_the_start(
    join: Callable[[], Rank], store: Store, index: int, num_ranks: int, loser: int, end: Callable[[], None]
) -> Answer:
    """One rank ends when all have found the store and before it joins; what the joining of the others says."""
    store.set(f"found/{index}", "1")
    store.wait([f"found/{rank}" for rank in range(num_ranks)])
    store.set(f"answered/{index}", "1")
    if index == loser:
        store.wait([f"answered/{rank}" for rank in range(num_ranks)])
        end()
    return loss_in(join)


def loss_in(step: Callable[[], object]) -> Answer:
    """The text of the lost peer with which a step ends, and how long the step took."""
    started_s = time.monotonic()
    try:
        step()
    except PeerLostError as error:
        return {"error": str(error), "took_s": time.monotonic() - started_s}
    return {"error": None}


def freeze() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def die() -> None:
    os._exit(9)


ENDS: dict[str, Callable[[], None]] = {"die": die, "freeze": freeze}


def main() -> None:
    what = sys.argv[1]
    index, num_ranks, store_fd, port = map(int, sys.argv[2:6])
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    bind_interface(None)
    store = open_store(HostInfo(), index, listen_fd=store_fd, port=port, timeout_s=60.0)

    def join() -> Rank:
        return Rank(index, store, 60.0 if what == "check" else LOSS_TIMEOUT_S, num_ranks)

    if what == "check":
        answer = check_all(join())
    else:
        end, loser, *when = what.split("-")
        if when == ["joining"]:
            answer = lose_at_the_start(join, store, index, num_ranks, int(loser), ENDS[end])
        else:
            answer = lose(join(), int(loser), ENDS[end])
    Path(sys.argv[6]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
