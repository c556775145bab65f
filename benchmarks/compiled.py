"""`python -m benchmarks.compiled`: an update with `algo.compile=reduce-overhead` and one kernel by kernel, on the CPU.

Both are measured in turns in one process, so that their ratio is of the code and not of the day. An update that is
compiled while it is measured is an error.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial

import torch

from benchmarks.parts import halfcheetah
from benchmarks.parts.measurement import call_us
from benchmarks.parts.updates import ALGOS, CALLS, as_in_a_learner
from benchmarks.quiet import Usage
from offpolicy.algos.learners import ReplayLearner
from offpolicy.algos.recorded import REDUCE_OVERHEAD, CompiledUpdate

WARM_CALLS = 4


def replay_learner(algo: str, mode: str) -> ReplayLearner:
    """A learner on HalfCheetah-v5 with two hidden layers of 256 units."""
    learner = halfcheetah.learner(algo, f"algo.compile={mode}")
    assert isinstance(learner, ReplayLearner)
    return learner


def compiled_learner(algo: str) -> tuple[ReplayLearner, float]:
    """A learner whose updates are compiled, and the seconds that this took."""
    learner = replay_learner(algo, REDUCE_OVERHEAD)
    state, begin_s = learner.state(), time.perf_counter()
    update = CompiledUpdate(learner)
    update.prepare(halfcheetah.batches().updates[0])
    learner.load_state(state)
    learner.run_update = update
    return learner, time.perf_counter() - begin_s


def samples_ms(learners: Sequence[ReplayLearner], rounds: int) -> list[list[float]]:
    """Milliseconds per update of each learner, by round."""
    batches = halfcheetah.batches()
    updates = [partial(learner.update, batches) for learner in learners]
    for update in updates:
        call_us(update, WARM_CALLS)
    return [[call_us(update, CALLS) / 1000 for update in updates] for _ in range(rounds)]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints medians, the median ratio of pairs with its quartiles, and how busy others kept the cores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algo", nargs="?", choices=ALGOS, default="sac")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--rounds", type=int, default=60, help=f"of {CALLS} updates of each kind")
    asked = parser.parse_args(argv)
    cores = sorted(os.sched_getaffinity(0))
    with as_in_a_learner():
        torch.set_num_threads(asked.threads)
        compiled, prepared_s = compiled_learner(asked.algo)
        before = Usage.now(cores)
        with torch._dynamo.config.patch(error_on_recompile=True):
            pairs = samples_ms((replay_learner(asked.algo, "off"), compiled), asked.rounds)
        others = Usage.now(cores).since(before).others_share(len(cores))
    off_ms, compiled_ms = (statistics.median(column) for column in zip(*pairs, strict=True))
    low, middle, high = statistics.quantiles((b / a for a, b in pairs), n=4)
    print(f"{asked.algo}, threads={asked.threads}, torch {torch.__version__}, prepared in {prepared_s:.0f} s")
    print(f"off {off_ms:.2f} ms, {REDUCE_OVERHEAD} {compiled_ms:.2f} ms; ratio {middle:.3f} ({low:.3f} to {high:.3f})")
    print(f"others took {100 * others:.0f} % of the cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
