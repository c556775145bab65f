"""`offpolicy compare RUN RUN ...`: phases, rates and learning curves of runs side by side, with verdicts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from offpolicy.analysis.contest import LEAST_SHARE, sections
from offpolicy.analysis.groups import Group, read_groups, warnings
from offpolicy.analysis.intervals import LEVEL
from offpolicy.analysis.resampling import block_length
from offpolicy.analysis.returns import AT_THE_END, common_end, reach_key
from offpolicy.analysis.text import Report, html, markdown, terminal
from offpolicy.analysis.verdicts import LEAST_CHANGE
from offpolicy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Request:
    """What to compare, `[label=]RUN` each, and which files to write."""

    runs: Sequence[str]
    reference: float | None = None  # score to reach; None: chosen from the curves
    png: Path | None = None
    markdown: Path | None = None
    html: Path | None = None


def compare(request: Request) -> int:
    """Print the comparison, write what is asked for. Raises `ConfigError` where there is nothing to compare."""
    _require_writable(request)
    groups = read_groups(request.runs)
    notes = (*_units(groups), *_legend(groups), *warnings(groups))
    report = Report(tuple(group.label for group in groups), tuple(sections(groups, request.reference)), notes)
    if not report.sections:
        raise ConfigError(f"run: {', '.join(report.labels)} have recorded nothing that could be compared")
    console = Console(markup=False, highlight=False, emoji=False)
    console.print(Text(report.title, "bold"))
    console.print(terminal(report, console.width))
    for path in _write(request, report, groups):
        sys.stdout.write(f"written: {path}\n")
    return 0


def _require_writable(request: Request) -> None:
    """Raises `ConfigError` before anything is read where a file could not be written."""
    for option in ("png", "markdown", "html"):
        path: Path | None = getattr(request, option)
        if path is not None and (path.is_dir() or not path.resolve().parent.is_dir()):
            raise ConfigError(f"--{option}: got {str(path)!r}, allowed a file in a directory that exists")


def _units(groups: Sequence[Group]) -> Iterator[str]:
    """What the intervals of each label rest on."""
    for group in groups:
        steady = [int(run.is_steady.sum()) for run in group.runs]
        left_out = sum(len(run.is_steady) for run in group.runs) - sum(steady)
        if group.has_seeds:
            drawn = f"{len(steady)} runs are drawn, then blocks of their records; {'+'.join(map(str, steady))} records"
        else:
            drawn = f"one run; blocks of {block_length(steady[0])} of its {steady[0]} records are drawn"
        yield f"{group.label}: {drawn}, {left_out} of the warm-up left out"


def _legend(groups: Sequence[Group]) -> Iterator[str]:
    yield (
        f"[{LEVEL:.0%} bootstrap interval of the change]; noise: it holds 0, or the change is below {LEAST_CHANGE:.0%}"
        f" of the value (but returns, of which any change counts) or, of a phase, {LEAST_SHARE:.1%} of the wall;"
        " no verdict where there is a single unit"
    )
    if any(group.has_env_steps for group in groups):
        yield (
            f"returns: up to {common_end(groups):,.0f} env steps, which all runs have; end: the mean over the last"
            f" {AT_THE_END:.0%} of them; scores are reached by {reach_key(groups) or 'no curve that all have'}"
        )
    if not all(group.has_seeds for group in groups):
        yield "one run of a label says how sure its own mean is, not how runs differ: label=RUN label=RUN gives seeds"


def _write(request: Request, report: Report, groups: Sequence[Group]) -> Iterator[Path]:
    """Write the files asked for and name them."""
    png = b""
    if request.png is not None or request.html is not None:
        from offpolicy.analysis.drawing import picture  # matplotlib is an extra, and takes a second to import

        png = picture(groups)
    if request.png is not None:
        request.png.write_bytes(png)
        yield request.png
    if request.markdown is not None:
        request.markdown.write_text(markdown(report, _link(request.markdown, request.png)))
        yield request.markdown
    if request.html is not None:
        request.html.write_text(html(report, png))
        yield request.html


def _link(page: Path, picture: Path | None) -> str | None:
    """Where `picture` lies, seen from `page`."""
    return None if picture is None else Path(os.path.relpath(picture, page.parent)).as_posix()
