"""`make bench-check`: fails if an update of today is slower, beside its GEMM floor, than in the last committed result.

Update and floor are measured in one process in turns, so that the ratio is of the code and not of the day. The last
result is that of the newest entry, committed in benchmarks/results, of a machine of the same kind (processor, cores,
architecture). Exit codes: 0 as fast, or nothing to compare with; 1 slower; 75 the machine was never quiet.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from benchmarks.children import use_cores
from benchmarks.journal import MORE_LEFT
from benchmarks.parts import updates
from benchmarks.parts.measurement import Measurement, measurements_of
from benchmarks.quiet import NOISY, Watch, look, wait_until_quiet
from benchmarks.results import REPOSITORY, RESULTS, Entry, all_entries, entries_in, facts_now, machine_kind

ALLOWED = 0.10  # fraction by which a ratio may be worse
NUM_CORES = 2
QUIET_ROUNDS, MOST_ROUNDS = 3, 6
Ratios = Mapping[str, float]  # update / floor by case, such as "SAC, 1 thread"


class Base(NamedTuple):
    """What today is compared with."""

    ratios: Ratios
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


def last_result(entries: Iterable[Mapping[str, Any]], kind: tuple[str, ...]) -> Base | None:
    """The newest entry with ratios of a machine of this kind; None without one."""
    base = None
    for entry in sorted(entries, key=lambda one: str(one.get("started", ""))):
        if entry.get("benchmark") == "parts" and machine_kind(entry) == kind:
            ratios = ratios_of(measurements_of(entry))
            base = Base(ratios, str(entry["commit"]), str(entry["started"])[:10]) if ratios else base
    return base


def verdicts(base: Base, now: Ratios, allowed: float = ALLOWED) -> list[str]:
    """A sentence for every case that is worse by more than `allowed`, or that is not measured any more."""
    sentences = []
    for case, before in base.ratios.items():
        if case not in now:
            sentences.append(f"{case}: not measured, was {before:.2f} x its GEMM floor at {base.commit}")
        elif now[case] > (1.0 + allowed) * before:
            worse = now[case] / before - 1.0
            sentences.append(
                f"{case}: an update takes {now[case]:.2f} x its GEMM floor, {worse:.0%} more than {before:.2f} x at "
                f"{base.commit} ({base.started}); allowed {allowed:.0%}"
            )
    return sentences


def committed_entries() -> list[Entry]:
    """The entries of HEAD; without git those of the directory."""
    try:
        folder = RESULTS.relative_to(REPOSITORY).as_posix() + "/"
        names = _git("ls-tree", "--name-only", "HEAD", folder).split()
        return [entry for name in names if name.endswith(".json") for entry in entries_in(_git("show", f"HEAD:{name}"))]
    except (OSError, subprocess.CalledProcessError):
        return [entry for _, _, entry in all_entries(RESULTS)]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


def measure_quietly(cores: Sequence[int]) -> list[Measurement]:
    """Rounds of the part `updates` until enough of them were quiet, and those; none if too few were."""
    tasks: dict[str, Entry] = {}
    for number in range(MOST_ROUNDS):
        wait_until_quiet(partial(look, cores))
        watch = Watch(cores)
        found = list(updates.measure(1))
        share = watch.others_share()
        print(f"round {number + 1}: others took {share:.0%} of the cores{' (left out)' if share > NOISY else ''}")
        if share <= NOISY:
            data = [one.to_mapping() for one in found]
            tasks[str(number)] = {"others_share": share, "data": data}
        if len(tasks) == QUIET_ROUNDS:
            return measurements_of({"tasks": tasks})
    return []


def main(argv: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog="python -m benchmarks.check", description=__doc__).parse_args(argv)
    cores = use_cores(NUM_CORES)
    here = facts_now("parts")
    base = last_result(committed_entries(), machine_kind(here))
    if base is None:
        print(f"bench-check: no committed result of a machine of this kind ({', '.join(machine_kind(here))}): nothing")
        print("to compare with. `make bench only=updates` measures one; commit its file of benchmarks/results.")
        return 0
    now = ratios_of(measure_quietly(cores))
    if not now:
        print(f"bench-check: others took more than {NOISY:.0%} of the cores in too many rounds: no verdict")
        return MORE_LEFT
    for case, ratio in now.items():
        spread = f"was {base.ratios[case]:.2f} at {base.commit}" if case in base.ratios else "new"
        print(f"{case}: update / GEMM floor {ratio:.2f}, {spread}")
    worse = verdicts(base, now)
    if worse:  # a second series, and the better of both: the day may have been in the first
        again = ratios_of(measure_quietly(cores))
        worse = verdicts(base, {case: min(ratio, again.get(case, ratio)) for case, ratio in now.items()})
    for sentence in worse:
        print(f"bench-check: {sentence}", file=sys.stderr)
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
