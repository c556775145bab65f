"""What a run was started with: the command, the commit of the code, the date, the machine and its load."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from offpolicy import __version__
from offpolicy.config.run_files import PLUGIN_NOTE, VERSION_NOTE
from offpolicy.files import atomic_write
from offpolicy.plugins import Plugin

GIT_TIMEOUT_S = 2.0  # a checkout on a slow disk must not delay the start
PACKAGE = Path(__file__).resolve().parents[1]
COMMIT = "# branch.oid "  # begins the line of `git status --porcelain=v2` with the commit
# Without it git writes the index of the checkout, and one that is killed leaves index.lock there. `git describe
# --dirty` writes it in any case.
NO_LOCKS = {"GIT_OPTIONAL_LOCKS": "0"}


@dataclass(frozen=True, slots=True)
class Provenance:
    """The circumstances of one start of a run."""

    command: str
    directory: str  # where it was given
    git_commit: str | None  # of the checkout there, else of ours; with -dirty where files differ from it
    started: str  # ISO 8601, UTC
    host: str
    load_before: tuple[float, float, float]  # mean number of running processes over 1, 5 and 15 minutes

    @classmethod
    def of_this_process(cls, started_unix_s: float, argv: Sequence[str] | None = None) -> Provenance:
        """Returns what this process was started with: `offpolicy` with the words `argv`, else what was typed."""
        commit = git_commit(Path.cwd())
        if commit is None and (PACKAGE.parent / ".git").exists():
            commit = git_commit(PACKAGE.parent)
        program = Path(sys.argv[0])
        if argv is None and (program.name == "offpolicy" or program.absolute().parent == PACKAGE):
            argv = sys.argv[1:]  # of the console script, or of python -m offpolicy
        words = [Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]] if argv is None else ["offpolicy", *argv]
        return cls(
            command=utf8(shlex.join(words)),
            directory=utf8(str(Path.cwd())),
            git_commit=commit,
            started=datetime.fromtimestamp(started_unix_s, UTC).isoformat(timespec="seconds"),
            host=socket.gethostname(),
            load_before=os.getloadavg(),
        )

    def section(self) -> dict[str, Any]:  # Any: the mapping `run` of summary.json
        """Returns the section `run` of `summary.json`, with the load of the machine now beside that before."""
        return asdict(self) | {"load_after": os.getloadavg()}

    def note(self, config_file: Path, plugins: Sequence[Plugin] = ()) -> None:
        """Adds this start to `config.yaml`, as comments: the keys stay what was asked for."""
        commit = f", commit {self.git_commit}" if self.git_commit else ""
        used = [f"{PLUGIN_NOTE}{plugin.label}" for plugin in plugins]
        lines = (f"{VERSION_NOTE}{__version__}, {self.started} on {self.host}{commit}", f"# {self.command}", *used)
        with contextlib.suppress(OSError, ValueError):  # a full disk: the run says so itself; a file that is no text
            text = config_file.read_text(encoding="utf-8")
            for line in lines:  # in ASCII: YAML ends a line at more characters than a newline, and refuses some others
                text += "".join(each if each.isascii() and each.isprintable() else ascii(each)[1:-1] for each in line)
                text += "\n"
            atomic_write(config_file, text, durable=False)


def git_commit(directory: Path) -> str | None:
    """Returns the commit of the checkout that holds `directory`; None where there is none, or no git."""
    command = ["git", "-C", str(directory), "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        found = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=GIT_TIMEOUT_S, check=False,
            env=os.environ | NO_LOCKS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    lines = found.stdout.splitlines() if found.returncode == 0 else []
    commits = [line.removeprefix(COMMIT) for line in lines if line.startswith(COMMIT)]
    if not commits or commits[0] == "(initial)":
        return None
    return f"{commits[0]}-dirty" if any(not line.startswith("#") for line in lines) else commits[0]


def utf8(text: str) -> str:
    """Returns a text that every file takes: bytes of the command line that are no UTF-8 are shown as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
