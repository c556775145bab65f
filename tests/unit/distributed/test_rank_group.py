"""Who is named when a collective fails."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from offpolicy.distributed import rank_group
from offpolicy.distributed.rank_group import PeerWatch
from offpolicy.errors import PeerLostError


class FakeStore:
    """A store that knows which ranks live; it may be down."""

    def __init__(self, alive: set[int], is_down: bool = False) -> None:
        self.keys, self.is_down = {f"alive/{rank}" for rank in alive}, is_down

    def set(self, key: str, value: str) -> None:
        if self.is_down:
            raise RuntimeError("Connection reset")
        self.keys.add(key)

    def check(self, keys: list[str]) -> bool:
        return set(keys) <= self.keys


class LeavingStore(FakeStore):
    """A store whose process ends when it has been asked for every rank once."""

    def set(self, key: str, value: str) -> None:
        self.is_down = False
        super().set(key, value)

    def check(self, keys: list[str]) -> bool:
        if self.is_down:
            raise RuntimeError("Connection reset")
        self.is_down = keys == ["alive/2"]  # the last one asked for
        return super().check(keys)


class FrozenStore(FakeStore):
    """A store whose process is frozen: it does not answer."""

    def check(self, keys: list[str]) -> bool:
        threading.Event().wait(10.0)
        return True


@pytest.mark.parametrize(
    ("store", "lost"),
    [
        (FakeStore({2}), "rank 0"),
        (FakeStore(set()), "rank 0, rank 2"),
        (FakeStore({0, 2}), "a rank that has left since"),
        (FakeStore(set(), is_down=True), "rank 0, or whatever else keeps the ranks' store"),
        (LeavingStore({0}), "rank 2"),  # rank 0 has noticed before, and has left
        (LeavingStore(set()), "rank 0, or whatever else keeps the ranks' store"),  # rank 2 had no time to mark itself
        (FrozenStore({0}), "rank 0, or whatever else keeps the ranks' store"),
    ],
)
def test_a_failed_collective_names_the_lost_ranks(monkeypatch: pytest.MonkeyPatch, store: Any, lost: str) -> None:
    def fail() -> None:
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1. This may indicate a crash.\nmore")

    monkeypatch.setattr(rank_group, "PEER_CHECK_S", 0.1)
    with pytest.raises(PeerLostError) as caught:
        PeerWatch(store, 1, 3, timeout_s=5.0).run(fail)
    assert str(caught.value) == (
        f"lost {lost}: it died, froze for 5 s (runner.timeout_s) or cannot be reached"
        " (Connection closed by peer [127.0.0.1]:1)"
    )
