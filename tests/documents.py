"""What the documents show: code blocks, the commands in them, headings and links."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(?P<language>\w*)$")
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
PROGRAMS = ("offpolicy", ".venv/bin/offpolicy", "make")
SHELL_WORDS = ("|", "&", "&&", "||", ";", ">", ">>")  # the command ends before them
TEMPLATES = ("...", "[...", "key=value", "RUN", "<")  # a line with one of them shows a shape and is not typed


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, empty for most, and its lines without the fences."""

    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """Returns the fenced blocks of a page, in order."""
    found, lines, language = [], [], None
    for line in page.splitlines():
        fence = FENCE.match(line)
        if language is None:
            language = fence["language"] if fence else None
        elif line == "```":
            found.append(Block(language, "\n".join(lines) + "\n"))
            lines, language = [], None
        else:
            lines.append(line)
    assert language is None, "a block is not closed"
    return found


def commands(page: str) -> Iterator[list[str]]:
    """Yields the words of every command of offpolicy or make that the blocks of a page show."""
    for block in blocks(page):
        for line in block.text.replace("\\\n", " ").splitlines():
            if line.startswith(tuple(f"{program} " for program in PROGRAMS)) or line in PROGRAMS:
                words = shlex.split(line, comments=True)
                ends = [index for index, word in enumerate(words) if word in SHELL_WORDS]
                yield words[: ends[0]] if ends else words


def is_template(words: list[str]) -> bool:
    """True if the command shows a shape, such as `offpolicy train ...`."""
    return any(word.startswith(TEMPLATES) or word.endswith(("...", "=RUN")) for word in words)


def made(words: list[str]) -> list[list[str]]:
    """Returns the commands of offpolicy that `make WORDS` would run. Fails if make knows no such target."""
    environ = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    result = subprocess.run(
        ["make", "--dry-run", *words], cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith(".venv/bin/offpolicy")]


def links(page: str) -> list[str]:
    """Returns the targets of a page's links and pictures that lead to files of the repository."""
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    return [link for link in LINK.findall(prose) if not link.startswith(("http://", "https://"))]


def anchors(page: str) -> set[str]:
    """Returns what a link to a heading of the page may name, as GitHub spells it."""
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings}
