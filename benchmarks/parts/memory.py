"""Resident memory of supervisor, learner and collector of a training run, beyond what nobody can save.

Taken off: the shared blocks (the replay, nearly all of it), and for learner and collector what a process holds that has
only imported torch, measured beside the run. The supervisor imports no torch, so nothing more is taken off there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.children import environment, offpolicy_train
from benchmarks.parts.measurement import Measurement

LIMIT_MB = 300.0
POLL_S = 0.1
STEPS = 3000  # 2000 updates: allocator and caches have settled
OVERRIDES = ("env=halfcheetah", f"total_timesteps={STEPS}", "device=cpu", "eval.episodes=0", "log.panel=off")
TORCH_BASELINE = "import torch; print(open('/proc/self/status').read())"


def measure(rounds: int) -> Iterator[Measurement]:
    """The peak of each process in `rounds` runs."""
    torch_mb = [_private_mb(_output([sys.executable, "-c", TORCH_BASELINE])) for _ in range(rounds)]
    peaks = [_peaks_mb() for _ in range(rounds)]
    yield Measurement("memory", "import torch", "MB", torch_mb)
    yield Measurement("memory", "supervisor without replay", "MB", [peak["supervisor"] for peak in peaks], LIMIT_MB)
    for role in ("learner", "collector"):
        above = [peak[role] - baseline for peak, baseline in zip(peaks, torch_mb, strict=True)]
        yield Measurement("memory", f"{role} without replay and torch", "MB", above, LIMIT_MB)


def _peaks_mb() -> dict[str, float]:
    """The peak private resident set of each role during one run."""
    peaks: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="offpolicy-bench-") as scratch:
        command = offpolicy_train(Path(scratch) / "run", *OVERRIDES)
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL)
        while process.poll() is None:
            for role, resident_mb in _roles_mb(process.pid).items():
                peaks[role] = max(peaks.get(role, 0.0), resident_mb)
            time.sleep(POLL_S)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
    return peaks


def _roles_mb(supervisor_pid: int) -> dict[str, float]:
    """Private resident megabytes of the supervisor and its named children that live now."""
    resident_mb: dict[str, float] = {}
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            status = path.read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has just exited
            continue
        fields = _fields(status)
        if "VmRSS" not in fields:  # a kernel thread, or a zombie
            continue
        if path.parent.name == str(supervisor_pid):
            resident_mb["supervisor"] = _private_mb(status)
        elif fields["PPid"] == str(supervisor_pid) and fields["Name"].startswith("op-"):
            resident_mb[fields["Name"].split("-")[1]] = _private_mb(status)
    return resident_mb


def _private_mb(status: str) -> float:
    """Resident set without shared memory, of the text of /proc/<pid>/status."""
    fields = _fields(status)
    kib = [int(fields[name].split()[0]) for name in ("VmRSS", "RssShmem")]
    return (kib[0] - kib[1]) * 1024 / 1e6


def _fields(status: str) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {name: value.strip() for name, value in pairs}


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
