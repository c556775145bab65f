"""Stand-ins that tests of several packages use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from offpolicy import fault
from offpolicy.checkpoint import SharedState
from tests.faults import plan_of


def shared_state(env_steps: int = 0, **other: Any) -> dict[str, Any]:
    """The `state.json` of a checkpoint of a run on rollouts, with some other values."""
    state = SharedState(
        numbers={"num_updates": 5}, env_steps=env_steps, num_collectors=1, num_ranks=1, start=[4, 0],
        replay_first=[], replay_end=[], replay_written=[], last_eval_step=0, teacher=None, fingerprint={},
        has_replay=False,
    )  # fmt: skip
    return vars(state) | other


@contextmanager
def refused(faults: str) -> Iterator[None]:
    """Has the operating system refuse something in this process, in the words of `OFFPOLICY_FAULT`."""
    fault.plan = plan_of("supervisor", 0, faults)
    try:
        yield
    finally:
        fault.plan = None


class FakeClock:
    """A clock that moves only when it is advanced."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """The current instant."""
        return self._now_ns

    def advance(self, ns: int) -> None:
        """Moves the clock forward by `ns` nanoseconds."""
        self._now_ns += ns
