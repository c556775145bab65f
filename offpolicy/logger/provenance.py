"""What a run came from: the command that started it and the git commit of the working directory."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

GIT_TIMEOUT_S = 2.0


def command_line(argv: Sequence[str] | None = None) -> str:
    """Returns the command as it can be typed again; the program without its directory."""
    program, *words = sys.argv if argv is None else argv
    return shlex.join([Path(program).name, *words])


def git_commit(directory: Path) -> str | None:
    """Returns the commit of the repository around `directory`, `-dirty` after changes; None without one."""
    command = ["git", "-C", str(directory), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):  # no git here, or a repository too large to look at
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
