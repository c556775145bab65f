"""The command line with learners that are slowed down or watched: `python -m tests.processes.delayed_cli train ...`.

The environment of the learner processes says what they do besides learning:

    SLOW_UPDATE_MS   every gradient update takes so many milliseconds longer, without using the CPU
    SLOW_RANK        only that of this rank of the host; unset: of all of them
    UNPACK_TIMES     filling a batch decompresses a megabyte so many times besides

Which part is late, in whatever process, and which phases are confused is read as
`tests/processes/delay_injection.py` says.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import zlib
from typing import Any

from offpolicy.config.schema import RunConfig
from offpolicy.processes.child import ChildContext
from tests.processes import delay_injection, late_link


def collector_main(context: ChildContext) -> None:
    """Entry point of a collector: the real one, with late parts."""
    delay_injection.install(context)
    importlib.import_module("runners.collector").main(context)


def link_main(context: ChildContext) -> None:
    """Entry point of the link: the real one, which may copy late."""
    late_link.slow_down_copies()
    importlib.import_module("runners.link").main(context)


def learner_main(context: ChildContext) -> None:
    """Entry point of a learner rank: the real one, with the parts above replaced in this process."""
    runner = importlib.import_module(f"runners.{context.payload['cfg']['runner']['name']}")
    slow_rank, slow_ms = os.environ.get("SLOW_RANK"), float(os.environ.get("SLOW_UPDATE_MS", "0"))
    if slow_ms and slow_rank in (None, str(context.index)):
        slow_down_updates(slow_ms / 1000.0)
    if "UNPACK_TIMES" in os.environ:
        unpack_batches(int(os.environ["UNPACK_TIMES"]))
    delay_injection.install(context)
    runner.learner_main(context)


def unpack_batches(times: int) -> None:
    """Makes a batch as expensive as one of compressed rows: work of the thread that fills it, without the interpreter.

    The rows themselves are the same.
    """
    from offpolicy.replay.sampler import Sampler

    blob = zlib.compress(os.urandom(1 << 16) * 16, 1)  # a megabyte
    fill = Sampler.fill

    def fill_and_unpack(*args: Any) -> Any:
        for _ in range(times):
            zlib.decompress(blob)
        return fill(*args)

    Sampler.fill = fill_and_unpack  # type: ignore[method-assign]


def slow_down_updates(delay_s: float) -> None:
    """Sleep before the updates of an iteration, once for each, outside of every collective; of rollouts only once."""
    from offpolicy.algos.learner import Learner
    from offpolicy.types import Batches

    update = Learner.update

    def slow_update(learner: Learner, batch: Any) -> None:
        time.sleep(delay_s * len(batch.updates) if isinstance(batch, Batches) else delay_s)
        update(learner, batch)

    Learner.update = slow_update  # type: ignore[method-assign]


def main() -> int:
    """The command line, with learners and collectors that start here."""
    from offpolicy import cli
    from runners import train

    entry_point = train.entry_point

    def slow_entry_point(role: str, cfg: RunConfig) -> str:
        return entry_point(role, cfg) if role == "evaluator" else f"tests.processes.delayed_cli:{role}_main"

    train.entry_point = slow_entry_point
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
