"""`make bench-tables [budget=480] [rounds=3]`: all numbers of docs/benchmarks.md, in pieces of so many seconds.

Each call continues where the last one stopped, at one commit on one kind of machine: exit code 75 says that more is
left, 0 that all is measured, 1 that all is but for what failed. A call begins no task that it expects to end after its
budget. Then `make bench-page` writes the page; commit results and page together.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import benchmarks.parts.__main__ as parts
import benchmarks.peers.__main__ as peers
from benchmarks.children import stop_at_sigterm, wide_console
from benchmarks.journal import MORE_LEFT, Budget, why_not_in_pieces

BUDGET_S = 480.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tables", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    Budget.add_options(parser, BUDGET_S)
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured (default: 3)")
    arguments = parser.parse_args(argv)
    if (why := why_not_in_pieces()) is not None:
        print(why, file=sys.stderr)
        return 2
    budget, console = Budget.from_options(arguments), wide_console()
    codes = [
        parts.measure(parts.NAMES, arguments.rounds, budget, console, resume=True),
        peers.measure(peers.whole_plan(arguments.rounds), budget, console, resume=True),
    ]
    return MORE_LEFT if MORE_LEFT in codes else max(codes)


if __name__ == "__main__":
    stop_at_sigterm()
    sys.exit(main())
