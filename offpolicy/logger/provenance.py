"""What a run was started with: the command, the commit of the code, the date, the machine and its load."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from offpolicy import __version__
from offpolicy.config.schema import VERSION_NOTE
from offpolicy.files import atomic_write

GIT_TIMEOUT_S = 2.0  # a checkout on a slow disk must not delay the start


@dataclass(frozen=True, slots=True)
class Provenance:
    """The circumstances of one start of a run."""

    command: str
    directory: str  # where it was given
    git_commit: str | None  # of the checkout there, else of ours; with -dirty where files differ from it
    started: str  # ISO 8601, UTC
    host: str
    load: tuple[float, float, float]  # mean number of running processes over 1, 5 and 15 minutes, before the start

    @classmethod
    def of_this_process(cls, started_unix_s: float, argv: Sequence[str] | None = None) -> Provenance:
        """Returns what this process was started with."""
        words = sys.argv[1:] if argv is None else argv
        here, ours = Path.cwd(), Path(__file__).resolve().parents[2]
        return cls(
            command=shlex.join(["offpolicy", *words]),
            directory=str(here),
            git_commit=git_commit(here) or (git_commit(ours) if (ours / ".git").exists() else None),
            started=datetime.fromtimestamp(started_unix_s, UTC).isoformat(timespec="seconds"),
            host=socket.gethostname(),
            load=os.getloadavg(),
        )

    def section(self) -> dict[str, Any]:  # Any: the mapping `run` of summary.json
        """Returns the section `run` of `summary.json`, with the load of the machine now beside that before."""
        return {
            "command": self.command,
            "directory": self.directory,
            "git_commit": self.git_commit,
            "started": self.started,
            "host": self.host,
            "load_before": list(self.load),
            "load_after": list(os.getloadavg()),
        }

    def note(self, config_file: Path) -> None:
        """Adds this start to `config.yaml`, as comments: the keys stay what was asked for."""
        commit = f", commit {self.git_commit}" if self.git_commit else ""
        lines = f"{VERSION_NOTE}{__version__}, {self.started} on {self.host}{commit}\n# {_one_line(self.command)}\n"
        with contextlib.suppress(OSError):  # a full disk: the run says so itself
            atomic_write(config_file, config_file.read_text() + lines, durable=False)


def git_commit(directory: Path) -> str | None:
    """Returns the commit of the checkout that holds `directory`; None where there is none, or no git."""
    command = ["git", "-C", str(directory), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n")
