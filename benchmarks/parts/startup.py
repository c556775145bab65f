"""How long a user waits: from the command to the first line, the first panel, the first record, a refusal."""

from __future__ import annotations

import os
import pty
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.children import environment, offpolicy_train
from benchmarks.parts.measurement import Measurement

OVERRIDES = ("env=halfcheetah", "device=cpu", "eval.episodes=0", "checkpoint.replay=false")
TIMEOUT_S = 60.0
FIRST_BYTE, FRAME, RECORD, PANEL_RECORD = b"", "╭".encode(), b" step=", b"Iter Wall"


def measure(rounds: int) -> Iterator[Measurement]:
    """Seconds since the command, in `rounds` runs of each kind."""
    lines = [_first_seen((FIRST_BYTE, RECORD), "log.panel=off") for _ in range(rounds)]
    panels = [_first_seen((FIRST_BYTE, FRAME, PANEL_RECORD), "log.panel=on") for _ in range(rounds)]
    named = (
        ("first line into a pipe or file", [seen[FIRST_BYTE] for seen in lines]),
        ("first record into a pipe or file", [seen[RECORD] for seen in lines]),
        ("first line above the panel", [seen[FIRST_BYTE] for seen in panels]),
        ("first panel frame", [seen[FRAME] for seen in panels]),
        ("first panel with a record", [seen[PANEL_RECORD] for seen in panels]),
        ("configuration error", [_refusal_s() for _ in range(rounds)]),
    )
    for name, samples in named:
        yield Measurement("start", name, "s", samples)


def _first_seen(markers: Sequence[bytes], panel: str) -> dict[bytes, float]:
    """Seconds until each marker appeared on the terminal of a run, which is then asked to stop."""
    terminal, end = pty.openpty()
    with tempfile.TemporaryDirectory(prefix="offpolicy-bench-") as scratch:
        command = offpolicy_train(Path(scratch) / "run", *OVERRIDES, panel)
        variables = environment(TERM="xterm-256color", PYTHONIOENCODING="utf-8", COLUMNS="100", LINES="40")
        start_s = time.monotonic()
        process = subprocess.Popen(command, env=variables, stdin=end, stdout=end, stderr=end)
        os.close(end)
        try:
            return _watch(terminal, markers, start_s)
        finally:
            process.terminate()
            _drain(terminal)
            process.wait(TIMEOUT_S)
            os.close(terminal)


def _watch(terminal: int, markers: Sequence[bytes], start_s: float) -> dict[bytes, float]:
    output, seen = b"", dict[bytes, float]()
    while len(seen) < len(markers):
        news = _read(terminal)
        output += news
        now_s = time.monotonic() - start_s
        for marker in markers:
            if marker in output:
                seen.setdefault(marker, now_s)
        if not news or now_s > TIMEOUT_S:
            raise RuntimeError(f"not seen within {now_s:.1f} s: {set(markers) - seen.keys()}; seen:\n{output.decode()}")
    return seen


def _read(terminal: int) -> bytes:
    """What is new on the terminal; empty once the run has closed its end."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says EIO when the last writer has gone
        return b""


def _drain(terminal: int) -> None:
    """Read until the run has closed its end; it would block on a full terminal otherwise."""
    while _read(terminal):
        pass


def _refusal_s() -> float:
    """Seconds until a configuration error is told and the command has returned 2."""
    command = offpolicy_train(Path("runs/refused"), "algo.gamma=2", "algo.batchsize=3")
    start_s = time.monotonic()
    result = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    elapsed_s = time.monotonic() - start_s
    if result.returncode != 2 or "2 configuration problems" not in result.stderr:
        raise RuntimeError(f"expected a refusal, got exit code {result.returncode}: {result.stderr}")
    return elapsed_s
