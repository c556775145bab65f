"""`offpolicy compare RUN RUN ...`: phases, rates and learning curves of runs side by side, with verdicts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from rich.text import Text

from offpolicy.analysis import report as pages
from offpolicy.analysis.bootstrap import LEVEL, block_length
from offpolicy.analysis.compare import LEAST_CHANGE, LEAST_OF_WALL, UNLIKE, sections
from offpolicy.analysis.conditions import Answer, check_conditions, parse_conditions
from offpolicy.analysis.learning_curves import FINAL_FRACTION, LEAST_OF_RANGE, common_end, reach_key
from offpolicy.analysis.runs import MAX_DESCHEDULED, LabelledRuns, read_runs, version_differences, warnings
from offpolicy.errors import EXIT_OK, EXIT_UNJUDGED, ConfigError
from offpolicy.files import write_output
from offpolicy.logger.console import plain_console
from offpolicy.output import counted
from offpolicy.runs import STDOUT, check_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the runs, the files to write and the conditions."""
    parser.add_argument("runs", nargs="+", metavar="[label=]run", help="runs, also of TensorBoard files only")
    parser.add_argument("--reference", type=float, help="score to reach (default: chosen from the curves)")
    parser.add_argument("--png", type=Path, help="write a picture; needs offpolicy[plot], as --html does")
    parser.add_argument("--markdown", type=Path, help="write the tables as Markdown")
    parser.add_argument("--html", type=Path, help="write one page with tables and picture")
    what = "for CI, repeatable: exit 1 if a change is surely beyond it, 75 if that cannot be judged"
    examples = "'perf/steps_per_sec<-5%%', 'timing/learner_train_ms>+3%%', 'eval/mean_reward<-10'"
    parser.add_argument("--fail-on", action="append", default=[], metavar="CONDITION", help=f"{what}: {examples}")


def run(arguments: argparse.Namespace) -> int:
    """Prints and writes a comparison. Returns 1 if a condition fails, 75 if one cannot be judged, else 0."""
    conditions = parse_conditions(arguments.fail_on)
    png, markdown, html = paths = arguments.png, arguments.markdown, arguments.html
    for option, path in zip(("--png", "--markdown", "--html"), paths, strict=True):
        if path is not None:
            check_output(option, path)
    if png or html:
        from offpolicy.analysis.plots import comparison_png  # refuses a missing matplotlib before anything is read
    compared, console = read_runs(arguments.runs), plain_console()
    report = report_of(compared, arguments.reference)
    console.print(Text(report.title, "bold"))
    console.print(pages.terminal(report, console.width))
    picture = comparison_png(compared) if png or html else b""
    if png:
        write_output("--png", png, picture)
    if markdown:
        # Encoded: Markdown ends a link at a space, and at a bracket.
        link = quote(os.fsencode(os.path.relpath(png, markdown.parent))) if png else None
        write_output("--markdown", markdown, pages.markdown(report, link))
    if html:
        write_output("--html", html, pages.html(report, picture))
    results = check_conditions(conditions, compared)
    lines = [f"written: {path}" for path in paths if path and str(path) != STDOUT]
    sys.stdout.write("".join(f"{line}\n" for line in (*lines, *(each.line for each in results))))
    answers = {each.answer for each in results}
    return 1 if Answer.FAILED in answers else EXIT_UNJUDGED if Answer.REFUSED in answers else EXIT_OK


def report_of(compared: Sequence[LabelledRuns], reference: float | None = None) -> pages.Report:
    """Returns the tables and notes of runs, the first the baseline, with a score to reach. Raises `ConfigError`."""
    labels, found = tuple(labelled.label for labelled in compared), tuple(sections(compared, reference))
    if not found:
        raise ConfigError(f"run: {', '.join(labels)} have recorded nothing that could be compared")
    notes = list(_notes(compared))
    if any(cell.verdict == UNLIKE for section in found for row in section.rows for cell in row.cells):
        what = "the two hold different work under one name, as the notes on their keys say; no verdict"
        notes.append(f"{UNLIKE}: {what}")
    return pages.Report(labels, found, (*notes, *warnings(compared)), tuple(version_differences(compared)))


def _notes(compared: Sequence[LabelledRuns]) -> Iterator[str]:
    """Yields what the intervals of each label rest on, and how to read the tables."""
    for labelled in compared:
        steady = [int(run.is_steady.sum()) for run in labelled.runs]
        left_out = sum(len(run.is_steady) for run in labelled.runs) - sum(steady)
        drawn = f"{len(steady)} runs are drawn, then blocks of their records; {'+'.join(map(str, steady))} records"
        if not labelled.has_seeds:
            drawn = f"one run; blocks of {block_length(steady[0])} of its {counted(steady[0], 'record')} are drawn"
        yield f"{labelled.label}: {drawn}, {left_out} of the warm-up left out"
    yield (
        f"[{LEVEL:.0%} bootstrap interval of the change]; noise: it holds 0, or the change is below {LEAST_CHANGE:.0%}"
        f" of the value or, of a phase, {LEAST_OF_WALL:.1%} of the wall, of a return {LEAST_OF_RANGE:.1%} of what the"
        " curves span; no verdict where there is a single unit"
    )
    if any(labelled.has_env_steps for labelled in compared):
        yield (
            f"returns: up to {common_end(compared):,.0f} env steps, which all runs have; end: the mean over the last"
            f" {FINAL_FRACTION:.0%} of them; scores are reached by {reach_key(compared) or 'no curve that all have'}"
        )
    if not all(labelled.has_seeds for labelled in compared):
        yield "one run of a label says how sure its own mean is, not how runs differ: label=RUN label=RUN gives seeds"
    busy = [labelled for labelled in compared if labelled.is_contended]
    yield from (f"busy: {each.label} was without a core for {each.descheduled_text} of its wall" for each in busy)
    if busy:
        yield (
            f"no verdict on time where a side was without a core for more than {MAX_DESCHEDULED:.0%} of the wall: that"
            " alone may lengthen a phase by more than a change does. Run again on idle cores, or with fewer threads"
        )
