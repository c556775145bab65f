"""Counts the types of ours that a reader meets on four ways through the program.

`python -m tests.contracts.types_met [TREE]` trains SAC on Pendulum in the tree with its defaults, but for checkpoints,
which are asked for once, and prints how many of our types had code that ran

- in the learner and in the collector, in two seconds of steady training without a record or a checkpoint,
- for one checkpoint: in the learner below its checkpointer, in the collector below its snapshot,
- for one Ctrl-C, in all processes.

A profile function in every process (`sys.setprofile`) writes them down; it takes a minute.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parents[2]
WHERE = "TYPES_MET"  # the environment variable with the directory that the processes share
# What the shared byte asks the processes to write down.
NOTHING, STEADY, CHECKPOINT, CTRL_C = range(4)
# Modules whose functions are on the stack while a process takes part in a checkpoint.
CHECKPOINTING = ("/checkpointer.py", "/snapshot.py")
SITECUSTOMIZE = "from types_met import watch\nwatch()\n"


def watch() -> None:
    """Makes this process, its threads and the processes that it forks write down the types that they meet."""
    import threading

    directory = Path(os.environ[WHERE])
    with (directory / "asked").open("rb") as file:
        asked = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
    known: set[tuple[int, CodeType, int]] = set()

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        window = asked[0]
        if window == NOTHING or event != "call":
            return
        code = frame.f_code
        key = (window, code, os.getpid())
        if key in known or (kind := type_of(code)) is None:
            return
        if window == CHECKPOINT and not is_below(frame, CHECKPOINTING):
            return
        known.add(key)
        name = Path("/proc/self/comm").read_text().strip()
        with (directory / f"met-{os.getpid()}").open("a") as met:
            met.write(json.dumps([window, name, kind]) + "\n")

    threading.setprofile(profile)
    sys.setprofile(profile)


def type_of(code: CodeType) -> str | None:
    """Returns the class of ours that defines the code, or None for functions and code of others."""
    path = code.co_filename
    if "/offpolicy/" not in path and "/runners/" not in path or "/site-packages/" in path:
        return None
    owner, _, _ = code.co_qualname.partition(".<locals>")[0].rpartition(".")
    return f"{Path(path).stem}.{owner}" if owner else None


def is_below(frame: FrameType | None, modules: tuple[str, ...]) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith(modules):
            return True
        frame = frame.f_back
    return False


def types_met(tree: Path) -> dict[str, list[str]]:
    """Trains in `tree` and returns the types met, by way."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "sitecustomize.py").write_text(SITECUSTOMIZE)
        asked = directory / "asked"
        asked.write_bytes(bytes([NOTHING]))
        run_dir = directory / "run"
        command = [sys.executable, "-m", "offpolicy", "train", "algo=sac", f"run_dir={run_dir}", "eval.every=0"]
        command += ["checkpoint.every=4000", "checkpoint.every_min=60", "log.every_s=600", "total_timesteps=1000000"]
        paths = os.pathsep.join(map(str, (directory, tree, Path(__file__).parent)))
        environment = os.environ | {WHERE: name, "PYTHONPATH": paths}
        process = subprocess.Popen(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: episodes(run_dir) >= 10, process)  # 2,000 env steps
            ask(asked, STEADY)
            time.sleep(2)
            ask(asked, CHECKPOINT)
            wait_until(lambda: any((run_dir / "checkpoints").glob("step-*/MANIFEST*")), process)
            ask(asked, CTRL_C)
            process.send_signal(signal.SIGINT)
            process.wait(60)
        finally:
            process.kill()
        met = [json.loads(line) for path in directory.glob("met-*") for line in path.read_text().splitlines()]
    return {
        "learner_types": kinds(met, STEADY, "learner"),
        "collector_types": kinds(met, STEADY, "collector"),
        "checkpoint_types": kinds(met, CHECKPOINT, ""),
        "ctrl_c_types": kinds(met, CTRL_C, ""),
    }


def kinds(met: list[tuple[int, str, str]], window: int, process: str) -> list[str]:
    return sorted({kind for at, name, kind in met if at == window and process in name})


def ask(asked: Path, window: int) -> None:
    with asked.open("r+b") as file:
        file.write(bytes([window]))


def episodes(run_dir: Path) -> int:
    path = run_dir / "episodes.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def wait_until(condition: object, process: subprocess.Popen[bytes], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the run ended with {process.returncode} or took longer than {seconds:.0f} s")
        time.sleep(0.05)


if __name__ == "__main__":
    found = types_met(Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT)
    json.dump({way: [len(types), *types] for way, types in found.items()}, sys.stdout, indent=1)
    print()
