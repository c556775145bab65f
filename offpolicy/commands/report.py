"""`offpolicy report RUN [RUN ...] --html FILE`: runs on one page that needs no other file and no network."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from offpolicy.analysis.page import page
from offpolicy.analysis.reported_run import read_reported
from offpolicy.errors import ConfigError
from offpolicy.files import write_output
from offpolicy.number_text import counted


def report(words: Sequence[str], html: Path) -> int:
    """Writes the page of the runs of `[label=]RUN ...`. Raises `ConfigError`."""
    if html.is_dir() or not html.resolve().parent.is_dir():
        raise ConfigError(f"--html: got {str(html)!r}, allowed a file in a directory that exists")
    runs = read_reported(words)
    text = page(runs)
    write_output("--html", html, text)
    sys.stdout.write(f"written: {html} ({counted(len(runs), 'run')}, {len(text.encode()) / 1024:,.0f} KiB)\n")
    return 0
