"""`make bench-check`: fails if an update is slower, beside its GEMM floor, than in the best committed result.

Update and floor are measured in turns in one process. The best result of a case is the least of benchmarks/results on a
machine of the same kind (processor, cores, architecture, torch) with at least three quiet rounds. Exit codes: 0 as
fast, or nothing to compare with; 1 slower; 75 the machine was never quiet.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from benchmarks.children import stop_at_sigterm, use_cores
from benchmarks.journal import MORE_LEFT, NOISY, Usage, is_marked, look, wait_until_quiet
from benchmarks.measurement import Measurement, measurements_of
from benchmarks.parts import updates
from benchmarks.results import Entry, all_entries, facts_now, machine_kind

ALLOWED = 0.10  # fraction by which a ratio may be worse
NUM_CORES = 2
QUIET_ROUNDS, MOST_ROUNDS = 3, 6
Ratios = Mapping[str, float]  # update / floor by case, such as "SAC, 1 thread"


class Best(NamedTuple):
    """The least ratio of a case in the committed results, and the entry that it is of."""

    ratio: float
    commit: str
    started: str


def ratios_of(measured: Iterable[Measurement]) -> dict[str, float]:
    """The median ratio of every case whose rounds were quiet."""
    ending = f": {updates.RATIO}"
    return {
        one.name.removesuffix(ending): one.spread.median
        for one in measured
        if one.part == updates.PART and one.name.endswith(ending) and one.has_quiet_round
    }


def best_results(entries: Iterable[Mapping[str, Any]], kind: tuple[str, ...]) -> dict[str, Best]:
    """The best result of every case on machines of this kind, of entries with enough quiet rounds."""
    best: dict[str, Best] = {}
    for entry in entries:
        own = [outcome for key, outcome in entry["tasks"].items() if key.startswith("updates/")]
        quiet = [outcome for outcome in own if not is_marked(outcome) and not outcome.get("failure")]
        if entry["benchmark"] == "parts" and machine_kind(entry) == kind and len(quiet) >= QUIET_ROUNDS:
            for case, ratio in ratios_of(measurements_of(entry["tasks"])).items():
                if case not in best or ratio < best[case].ratio:
                    best[case] = Best(ratio, str(entry["commit"]), str(entry["started"])[:10])
    return best


def verdicts(best: Mapping[str, Best], now: Ratios) -> list[str]:
    """Returns a sentence for every case that is worse by more than `ALLOWED`, or that is not measured any more."""
    sentences = []
    for case, (before, commit, started) in best.items():
        if case not in now:
            sentences.append(f"{case}: not measured, was {before:.2f} x its GEMM floor at {commit}")
        elif now[case] > (1.0 + ALLOWED) * before:
            worse = now[case] / before - 1.0
            sentences.append(
                f"{case}: an update takes {now[case]:.2f} x its GEMM floor, {worse:.0%} more than {before:.2f} x at "
                f"{commit} ({started}); allowed {ALLOWED:.0%}"
            )
    return sentences


def measure_quietly(cores: Sequence[int]) -> list[Measurement]:
    """Rounds of the part `updates` until enough of them were quiet, and those; none if too few were."""
    tasks: dict[str, Entry] = {}
    for number in range(MOST_ROUNDS):
        wait_until_quiet(partial(look, cores))
        before = Usage.now(cores)
        data = [one.to_mapping() for one in updates.measure_beside_floors(1)]
        share = Usage.now(cores).since(before).others_share(len(cores))
        print(f"round {number + 1}: others took {share:.0%} of the cores{' (left out)' if share > NOISY else ''}")
        if share <= NOISY:
            tasks[str(number)] = {"others_share": share, "data": data}
        if len(tasks) == QUIET_ROUNDS:
            return measurements_of(tasks)
    return []


def main(argv: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog="python -m benchmarks.check", description=__doc__).parse_args(argv)
    cores = use_cores(NUM_CORES)
    here = facts_now("parts")
    best = best_results(all_entries(), machine_kind(here))
    if not best:
        print(f"bench-check: no result of a machine of this kind ({', '.join(machine_kind(here))}) to compare with")
        return 0
    now = ratios_of(measure_quietly(cores))
    if not now:
        print(f"bench-check: others took more than {NOISY:.0%} of the cores in too many rounds: no verdict")
        return MORE_LEFT
    for case, ratio in now.items():
        spread = f"was {best[case].ratio:.2f} at {best[case].commit}" if case in best else "new"
        print(f"{case}: update / GEMM floor {ratio:.2f}, {spread}")
    worse = verdicts(best, now)
    for sentence in worse:
        print(f"bench-check: {sentence}", file=sys.stderr)
    return int(bool(worse))


if __name__ == "__main__":
    stop_at_sigterm()
    sys.exit(main())
