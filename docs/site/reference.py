"""What the site makes from the code: the options of the configuration and the commands."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

COMMAND_WIDTH = 100  # characters of a help text


def options() -> str:
    """Returns a table per section of the configuration: key, default, meaning, what is allowed."""
    from offpolicy.config.overrides import as_override
    from offpolicy.config.parsing import allowed_text
    from offpolicy.config.schema import specs

    rows: dict[str, list[str]] = {}
    for key, spec in specs().items():
        section = key.split(".")[0] if "." in key else "of the run"
        default = f"`{as_override(spec.default)}`" if as_override(spec.default) else "none"
        allowed, needs = allowed_text(spec.hint, spec.limits), spec.limits["needs"]
        row = (f"`{key}`", default, spec.limits["doc"], allowed, f"`{needs}`" if needs else "")
        rows.setdefault(section, []).append("| " + " | ".join(_cell(text) for text in row) + " |")
    head = "| key | default | meaning | allowed | read with |\n|---|---|---|---|---|\n"
    tables = [f"## {name}\n\n{head}" + "\n".join(lines) + "\n" for name, lines in rows.items()]
    return "\n".join(tables)


def commands() -> str:
    """Returns the help of every command."""
    from offpolicy import cli

    with _width(COMMAND_WIDTH):
        helps = {name: cli.parser_of([name]).format_help() for name in cli.COMMANDS}
    shown = [f"## {name}\n\n```\n{text.rstrip()}\n```\n" for name, text in helps.items()]
    return "\n".join(shown)


def _cell(text: str) -> str:
    """Returns a text that stays within its cell of a Markdown table, and is no link, emphasis or HTML there."""
    code = text.startswith("`")
    escaped = text.replace("|", "\\|") if code else re.sub(r"([|*_<>\[\]])", r"\\\1", text)
    return escaped.replace("\n", " ")


@contextmanager
def _width(columns: int) -> Iterator[None]:
    """Help texts have this width within."""
    with mock.patch.dict(os.environ, COLUMNS=str(columns), NO_COLOR="1"):
        yield
