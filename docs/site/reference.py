"""What the site makes from the code: the metrics, the options of the configuration and the commands."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from unittest import mock

COMMAND_WIDTH = 100  # characters of a help text
METRIC_COLUMNS = ("key", "class", "unit", "window", "ranks and collectors", "panel row", "meaning")
ALIAS_COLUMNS = ("its key", "read as", "which it is not quite")


def metrics() -> str:
    """Returns a table per section of the metrics, and one per trainer whose names are read."""
    from offpolicy.logger.metrics import METRICS, VOCABULARIES

    parts = []
    for section, found in groupby(METRICS.values(), lambda metric: metric.section):
        rows = [(f"`{m.key}`", m.kind, m.unit, m.window, m.reduction, m.row, m.help) for m in found]
        parts.append(f"### {section}\n\n{_table(METRIC_COLUMNS, rows)}")
    for vocabulary in VOCABULARIES[1:]:  # without our own
        names = [(f"`{old}`", f"`{alias.key}`", alias.note) for old, alias in vocabulary.aliases.items()]
        parts.append(f"### Names of {vocabulary.name}\n\n{_table(ALIAS_COLUMNS, names)}")
    return "\n".join(parts)


def options() -> str:
    """Returns a table per section of the configuration: key, default, meaning, what is allowed."""
    from offpolicy.config.overrides import as_override
    from offpolicy.config.parsing import allowed_text
    from offpolicy.config.schema import specs

    rows: dict[str, list[tuple[str, ...]]] = {}
    for key, spec in specs().items():
        section = key.split(".")[0] if "." in key else "of the run"
        default = f"`{as_override(spec.default)}`" if as_override(spec.default) else "none"
        allowed, needs = allowed_text(spec.hint, spec.limits), spec.limits["needs"]
        row = (f"`{key}`", default, spec.limits["doc"], allowed, f"`{needs}`" if needs else "")
        rows.setdefault(section, []).append(row)
    columns = ("key", "default", "meaning", "allowed", "read with")
    return "\n".join(f"### {name}\n\n{_table(columns, found)}" for name, found in rows.items())


def commands() -> str:
    """Returns the help of every command."""
    from offpolicy import cli

    with _width(COMMAND_WIDTH):
        helps = {name: cli.parser_of([name]).format_help() for name in cli.COMMANDS}
    shown = [f"### offpolicy {name}\n\n```\n{text.rstrip()}\n```\n" for name, text in helps.items()]
    return "\n".join(shown)


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *(tuple(map(_cell, row)) for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _cell(text: str) -> str:
    """Returns a text that stays within its cell of a Markdown table, and is no link, emphasis or HTML there."""
    parts = re.split(r"(`[^`]*`)", text.replace("\n", " "))  # every second one is code
    parts[::2] = [re.sub(r"([*_<>\[\]])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts).replace("|", "\\|")


@contextmanager
def _width(columns: int) -> Iterator[None]:
    """Help texts have this width within."""
    with mock.patch.dict(os.environ, COLUMNS=str(columns), NO_COLOR="1"):
        yield
