"""`make bench-peers [steps=12000] [rounds=3] [only=ours,sb3-1]`: who steps faster, doing the same work."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from rich.console import Console

from benchmarks.children import use_cores
from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.race import STEADY_FROM, Repeat, run
from benchmarks.peers.tables import rates, rates_table, ratios, ratios_table
from benchmarks.results import ResultFile
from benchmarks.stats import Spread

NUM_CORES = 2
MIN_STEPS = STEADY_FROM + 500


def main() -> int:
    arguments = _parser().parse_args()
    cores = use_cores(NUM_CORES)
    reasons = {key: CONTENDERS[key].why_missing() for key in arguments.only}
    missing = {key: reason for key, reason in reasons.items() if reason is not None}
    present = [key for key in arguments.only if key not in missing]
    console, file, repeats = Console(), ResultFile("peers"), list[Repeat]()
    for number in range(1, arguments.rounds + 1):
        for key in present:  # A B C, A B C: the weather of a shared machine falls on all alike
            repeats.append(run(key, CONTENDERS[key], arguments.steps, number, cores))
            console.print(_line(repeats[-1], arguments.rounds), highlight=False, markup=False, soft_wrap=True)
            file.save(steps=arguments.steps, cores=cores, missing=missing, **_summary(repeats))
    console.print(rates_table(repeats, missing, arguments.steps))
    for key, reason in missing.items():
        console.print(f"{CONTENDERS[key].name} is not installed: {reason}", soft_wrap=True, markup=False)
    if any(ratios(repeats).values()):
        console.print(ratios_table(repeats))
    if repeats:
        console.print(f"written: {file.path}", soft_wrap=True, highlight=False)
    return int(any(repeat.failure for repeat in repeats if repeat.contender in ("ours", "overlap")))


def _summary(repeats: list[Repeat]) -> dict[str, object]:
    """Spreads and ratios besides the repeats they are computed from."""
    keys = dict.fromkeys(repeat.contender for repeat in repeats)
    speeds = {key: list(rates(repeats, key).values()) for key in keys}
    return {
        "steps_per_sec": {key: Spread.of(values)._asdict() for key, values in speeds.items() if values},
        "ratios": ratios(repeats),
        "repeats": [asdict(repeat) for repeat in repeats],
    }


def _line(repeat: Repeat, rounds: int) -> str:
    """One repeat as it ends."""
    result = repeat.failure if repeat.steps_per_sec is None else f"{repeat.steps_per_sec:.1f} env steps/s"
    return f"round {repeat.round}/{rounds}  {CONTENDERS[repeat.contender].name}: {result}  ({repeat.wall_s:.0f} s)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--steps", type=_steps, default=12_000, help=f"env steps per repeat, at least {MIN_STEPS}")
    parser.add_argument("--rounds", type=int, default=3, help="repeats of every contender (default: 3)")
    parser.add_argument("--only", type=_keys, default=list(CONTENDERS), help=f"some of {','.join(CONTENDERS)}")
    return parser


def _steps(text: str) -> int:
    if int(text) < MIN_STEPS:
        raise argparse.ArgumentTypeError(f"got {text}, allowed at least {MIN_STEPS}: rates start at {STEADY_FROM}")
    return int(text)


def _keys(text: str) -> list[str]:
    keys = text.split(",")
    if unknown := set(keys) - CONTENDERS.keys():
        raise argparse.ArgumentTypeError(f"got {', '.join(sorted(unknown))}, allowed {', '.join(CONTENDERS)}")
    return keys


if __name__ == "__main__":
    sys.exit(main())
