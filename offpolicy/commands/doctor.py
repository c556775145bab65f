"""`offpolicy doctor`: what is installed, what the machine gives, what will be slow, and the fix of each."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

from packaging.requirements import Requirement

from offpolicy import __version__, machine
from offpolicy.errors import EXIT_OK, ConfigError
from offpolicy.machine import GIB
from offpolicy.processes.fork_server import ChildError, call_in_child
from offpolicy.timing.clock import ClockCheck, check_clock

CHILD_S = 60.0  # torch on a cold disk
LITTLE_MEMORY = 2 * GIB  # a default run has three processes, two of them with torch
SLOW_READING_NS = 500  # of the clock; a tsc takes some 50
OK, NOTE, SLOW, BAD, BROKEN = LEVELS = "ok", "note", "slow", "bad", "broken"


class Finding(NamedTuple):
    """One fact. `fix` says what to change where the level is not `ok`."""

    section: str
    name: str
    value: str
    level: str = OK
    fix: str = ""


def finding(section: str, name: str, value: str, *problems: tuple[bool, str, str]) -> Finding:
    """Returns a fact with the first of the problems (it holds, level, fix) that holds."""
    return Finding(section, name, value, *next(((level, fix) for holds, level, fix in problems if holds), ()))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the form of the output."""
    parser.add_argument("--json", action="store_true", help="write the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints every finding, and returns 2 if no training can work here, else 0."""
    found = [*packages(metadata.requires("offpolicy") or ()), *torch_findings(), *host(), drawing()]
    can_train = not any(each.level == BROKEN for each in found)
    content = {"offpolicy": __version__, "can_train": can_train, "findings": [each._asdict() for each in found]}
    sys.stdout.write((json.dumps(content, indent=2) if arguments.json else "\n".join(lines(found))) + "\n")
    return EXIT_OK if can_train else ConfigError.exit_code


def lines(found: Sequence[Finding]) -> Iterator[str]:
    """Yields the findings by section, and what to do, the worst first."""
    for section in dict.fromkeys(each.section for each in found):
        yield section
        yield from (f"  {each.level:<6} {each.name:<17} {each.value}" for each in found if each.section == section)
    if fixes := sorted((each for each in found if each.fix), key=lambda each: -LEVELS.index(each.level)):
        yield from ("to change, the worst first:", *(f"  {each.name}: {each.fix}" for each in fixes))
    if not any(each.level == BROKEN for each in found):
        yield "training works here: offpolicy train algo=sac"


def packages(requirements: Sequence[str]) -> Iterator[Finding]:
    """Yields whether Python packages are installed, within their ranges, without those of extras."""
    yield Finding("software", "python", platform.python_version())
    for wanted in map(Requirement, requirements):
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        install = f"pip install '{wanted.name}{wanted.specifier}'"
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            yield Finding("software", wanted.name, "not installed", BROKEN, install)
        else:
            is_other = not wanted.specifier.contains(version, prereleases=True)
            yield finding("software", wanted.name, version, (is_other, BAD, install))


def torch_findings() -> Iterator[Finding]:
    """Yields what torch can use on the CPU, and which GPUs. A child process imports it."""
    try:
        found: Mapping[str, Any] = call_in_child(f"{__name__}:probe_torch", timeout_s=CHILD_S)
    except ChildError as error:
        why = (error.output.splitlines() or [error.reason])[-1]
        yield Finding("software", "import torch", why, BROKEN, "python -c 'import torch' shows the whole error")
        return
    is_slow = found["vector"] in ("DEFAULT", "NO AVX") or found["mkl"] != "MKL"
    fix = "use a processor with AVX2, and torch from PyPI, whose x86-64 builds have MKL"
    yield finding("software", "torch on CPU", f"{found['vector']}, {found['mkl']}", (is_slow, SLOW, fix))
    yield from gpus(found, has_driver=machine.has_gpu())


def probe_torch(_: None) -> dict[str, Any]:  # Any: JSON values
    """Returns what torch says, in the child of `torch_findings`."""
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    mkl = "MKL" if torch.backends.mkl.is_available() else "without MKL"  # type: ignore[no-untyped-call]  # of torch
    vector = torch.backends.cpu.get_cpu_capability()
    return {"cuda": torch.version.cuda, "vector": vector, "mkl": mkl, "gpus": names}


def gpus(found: Mapping[str, Any], *, has_driver: bool) -> Iterator[Finding]:
    """Yields the GPUs that torch can use, or why it can use none."""
    yield from (Finding("gpu", f"cuda:{i}", f"{name}, CUDA {found['cuda']}") for i, name in enumerate(found["gpus"]))
    if not has_driver and not found["gpus"]:
        yield Finding("gpu", "cuda", "no GPU driver: device=auto is the CPU")
    elif not found["gpus"]:
        why = "torch sees no device" if found["cuda"] else "torch is a CPU build"
        fix = "a torch build for this driver's CUDA, or a newer driver; CUDA_VISIBLE_DEVICES must name a device"
        yield Finding("gpu", "cuda", f"a GPU driver, but {why}", SLOW, fix)


def host() -> Iterator[Finding]:
    """Yields the findings about processor, cores, memory and clock."""
    fix = "train on x86-64: the shared-memory rings need its order of stores (docs/install.md)"
    kind = machine.processor()
    text = f"{machine.cpu_model()} ({kind})"
    yield finding("machine", "processor", text, (kind not in machine.X86_64, BROKEN, fix))
    yield cores(len(os.sched_getaffinity(0)), os.cpu_count() or 1, machine.cpu_quotas())
    available, total = machine.memory()
    limits = "".join(f", limit {each.limit / GIB:.1f} GiB ({each.directory})" for each in machine.memory_limits())
    text = f"{available / GIB:.1f} of {total / GIB:.1f} GiB available{limits}"
    fix = "the kernel may kill processes; end other programs, raise the limit, or lower replay.capacity"
    yield finding("machine", "memory", text, (available < LITTLE_MEMORY, BAD, fix))
    yield clock(check_clock())


def cores(cpus: int, existing: int, quotas: Sequence[machine.CpuQuota]) -> Finding:
    """Returns the cores that this process may use: its affinity, within the quotas of its cgroups."""
    usable = machine.usable_cores(cpus, quotas)
    text = f"{cpus} of the machine's {existing}"
    text += "".join(f", a quota of {each.cores:g} ({each.directory})" for each in quotas)
    more = "taskset -c, docker --cpus or --cpuset-cpus, sbatch --cpus-per-task"
    few = (usable < 2.0, SLOW, f"collector and learner take turns on less than two cores; allow more: {more}")
    return finding("machine", "cores", text, few, (usable < existing, NOTE, f"more: {more}"))


def clock(found: ClockCheck) -> Finding:
    """Returns the clock's source, cost and resolution."""
    text = f"{found.source}, {found.reading_ns:.0f} ns per reading, steps of {found.step_ns} ns"
    steps_back = (found.backward_steps > 0, BAD, "the time account is wrong here; boot with a stable clocksource")
    fix = "a reading takes long: boot with clocksource=tsc, or train with timing.enabled=false"
    return finding("machine", "clock", text, steps_back, (found.reading_ns > SLOW_READING_NS, SLOW, fix))


def drawing() -> Finding:
    """Returns whether MuJoCo can draw here, with the renderer that `play` takes where there is no display."""
    name, draws = f"MUJOCO_GL={os.environ.setdefault('MUJOCO_GL', 'egl')}", False
    with contextlib.suppress(ChildError):
        draws = call_in_child(f"{__name__}:draw", timeout_s=CHILD_S)
    fix = "videos: MUJOCO_GL=egl or osmesa (apt-get install libegl1 or libosmesa6), or glfw with a display"
    return finding("drawing", name, "draws" if draws else "does not draw", (not draws, NOTE, fix))


def draw(_: None) -> bool:
    """Makes what draws, in the child of `drawing`. Raises what the library raises."""
    mujoco: Any = importlib.import_module("mujoco")  # Any: it has no types
    mujoco.GLContext(32, 32).make_current()
    return True
