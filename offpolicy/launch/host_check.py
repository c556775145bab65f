"""What this machine gives a run: processor, cores, memory, shared memory, clock, files, and what of it will be slow."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from offpolicy.launch.finding import Finding, Level
from offpolicy.machine import (
    CpuQuota,
    cpu_model,
    cpu_quotas,
    keeps_store_order,
    load_per_core,
    memory,
    memory_limits,
    processor,
    usable_cores,
)
from offpolicy.processes.shared_memory import SharedBlock, WakeEvent
from offpolicy.timing.clock_check import ClockCheck, check_clock

HOST = "machine"  # section
GIB = 2**30
BUSY = 0.3  # threads of other programs that want to run, per core
SLOW_READING_NS = 500  # of the clock; a tsc takes some 50
FEW_FILES = 256  # a run with one collector opens fewer
LITTLE_MEMORY = 2 * GIB  # a default run has three processes, two of them with torch
LITTLE_SHM = GIB
LITTLE_DISK = 2 * GIB
SYSTEM_CPU = Path("/sys/devices/system/cpu")
SHM = Path("/dev/shm")


def host_findings() -> Iterator[Finding]:
    """Yields the findings about this machine."""
    yield processor_finding(processor(), cpu_model())
    cpus = sorted(os.sched_getaffinity(0))
    yield from cores(cpus, os.cpu_count() or len(cpus), cpu_quotas())
    yield load_finding(load_per_core())
    yield from governor(SYSTEM_CPU, cpus)
    yield memory_finding(*memory())
    yield from shared_memory()
    yield shm_finding(SHM)
    yield from clock_findings(check_clock())
    yield scheduler_finding(Path("/proc/thread-self/schedstat"))
    yield from file_limits()
    yield disk_finding(Path.cwd())


def processor_finding(kind: str, model: str) -> Finding:
    """Returns whether the processor keeps the order of stores that the rings need."""
    if keeps_store_order(kind):
        return Finding(HOST, "processor", f"{model} ({kind})")
    fix = "train on x86-64: the shared-memory rings need its order of stores (docs/install.md)"
    return Finding(HOST, "processor", f"{model} ({kind})", Level.BROKEN, fix)


def cores(cpus: Sequence[int], machine: int, quotas: Sequence[CpuQuota]) -> Iterator[Finding]:
    """Yields the cores that this process may use: its affinity, within the quotas of its cgroups."""
    usable, shared = usable_cores(len(cpus), list(quotas)), num_physical(SYSTEM_CPU, cpus)
    parts = [f"{len(cpus)} of the machine's {machine}"]
    parts += [f"a quota of {quota.cores:g} ({quota.directory})" for quota in quotas]
    parts += [f"on {shared} physical cores"] if shared < len(cpus) else []
    text, few = ", ".join(parts), "one core: collector and learner take turns"
    if usable < 1.0:
        fix = "raise the quota (docker --cpus, cpu.max): every process is stopped in each period"
        yield Finding(HOST, "cores", text, Level.SLOW, fix)
    elif usable < 2.0:
        yield Finding(HOST, "cores", text, Level.SLOW, f"{few}; allow a second (taskset, --cpus, sbatch -c)")
    elif len(cpus) < machine or usable < len(cpus):
        fix = "more: taskset -c, docker --cpus or --cpuset-cpus, sbatch --cpus-per-task"
        yield Finding(HOST, "cores", text, Level.NOTE, fix)
    else:
        yield Finding(HOST, "cores", text)


def num_physical(root: Path, cpus: Sequence[int]) -> int:
    """Returns how many physical cores these CPUs are; the CPUs themselves where the kernel does not tell."""
    siblings = set()
    for cpu in cpus:
        try:
            siblings.add((root / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip())
        except OSError:
            return len(cpus)
    return len(siblings)


def load_finding(load: float) -> Finding:
    """Returns whether other programs use the cores now."""
    text = f"{load:.2f} threads per core of the host want to run (mean of a minute)"
    if load <= BUSY:
        return Finding(HOST, "load", text)
    return Finding(HOST, "load", text, Level.SLOW, "other programs have the cores; wait, or end them (top)")


def governor(root: Path, cpus: Sequence[int]) -> Iterator[Finding]:
    """Yields the frequency policy of the cores, where the kernel shows one."""
    found = set()
    for cpu in cpus:
        file = root / f"cpu{cpu}/cpufreq/scaling_governor"
        if file.is_file():
            found.add(file.read_text().strip())
    if found:
        text, is_slow = ", ".join(sorted(found)), "powersave" in found
        fix = "cpupower frequency-set -g performance" if is_slow else ""
        yield Finding(HOST, "frequency", text, Level.NOTE if is_slow else Level.OK, fix)


def memory_finding(available: int, total: int) -> Finding:
    """Returns the memory at hand, within the limits of the cgroups and of `ulimit -v`."""
    limits = "".join(f", limit {each.limit / GIB:.1f} GiB ({each.directory})" for each in memory_limits())
    text = f"{available / GIB:.1f} of {total / GIB:.1f} GiB available{limits}"
    if available >= LITTLE_MEMORY:
        return Finding(HOST, "memory", text)
    fix = "the kernel may kill processes; end other programs, raise the limit, or lower replay.capacity"
    return Finding(HOST, "memory", text, Level.BAD, fix)


def shared_memory() -> Iterator[Finding]:
    """Yields whether memory can be shared between processes, and a process be woken."""
    try:
        block, wake = SharedBlock.create("doctor", 4096), WakeEvent.create()
        wake.set()
        woken = wake.wait(1.0)
        os.close(wake.fd)
        os.close(block.fd)
    except OSError as error:
        fix = "allow memfd_create and eventfd in the sandbox (seccomp profile)"
        yield Finding(HOST, "shared memory", f"cannot be made: {error}", Level.BROKEN, fix)
        return
    level, text = (Level.OK, "memfd and eventfd work") if woken else (Level.BROKEN, "eventfd wakes nobody")
    yield Finding(HOST, "shared memory", text, level, "" if woken else "use a Linux kernel, not an emulation of it")


def shm_finding(directory: Path) -> Finding:
    """Returns the size of /dev/shm, which NCCL uses between GPUs. The rings do not."""
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        fix = "mount a tmpfs there: NCCL needs it between GPUs; nothing else of a run does"
        return Finding(HOST, str(directory), "missing", Level.NOTE, fix)
    text = f"{usage.free / GIB:.2f} of {usage.total / GIB:.2f} GiB free (used by NCCL only)"
    if usage.free >= LITTLE_SHM:
        return Finding(HOST, str(directory), text)
    return Finding(HOST, str(directory), text, Level.NOTE, "for several GPUs: docker run --shm-size=2g")


def clock_findings(clock: ClockCheck) -> Iterator[Finding]:
    """Yields the clock's source, cost and resolution."""
    text = f"{clock.source}, {clock.reading_ns:.0f} ns per reading, steps of {clock.step_ns} ns"
    if clock.backward_steps:
        fix = "the time account is wrong here; boot with a stable clocksource"
        yield Finding(HOST, "clock", f"{text}, {clock.backward_steps} backwards", Level.BAD, fix)
    elif clock.reading_ns > SLOW_READING_NS:
        fix = "every reading is a system call: boot with clocksource=tsc, or train with timing.enabled=false"
        if clock.source == "tsc":
            fix = "reading it is slow here, as where a virtual machine traps it: train with timing.enabled=false"
        yield Finding(HOST, "clock", text, Level.SLOW, fix)
    else:
        yield Finding(HOST, "clock", text)


def scheduler_finding(file: Path) -> Finding:
    """Returns whether the kernel says how long a thread waited for a core."""
    if file.exists():
        return Finding(HOST, "scheduler", "counts the time a thread waits for a core")
    fix = "timing cannot tell work from waiting for a core; a kernel with CONFIG_SCHED_INFO can"
    return Finding(HOST, "scheduler", "counts no waits for a core", Level.NOTE, fix)


def file_limits() -> Iterator[Finding]:
    """Yields the limits on open files, on the size of a file, and on processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{_limit(soft)} (hard {_limit(hard)}; a run raises the soft one itself)"
    few = hard != resource.RLIM_INFINITY and hard < FEW_FILES
    fix = f"ulimit -n {FEW_FILES} as root, or LimitNOFILE= of the service" if few else ""
    yield Finding(HOST, "open files", text, Level.BAD if few else Level.OK, fix)
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size != resource.RLIM_INFINITY:
        text = f"{size / GIB:.2f} GiB, which bounds the shared memory of a run too"
        yield Finding(HOST, "file size", text, Level.BAD, "ulimit -f unlimited")


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"


def disk_finding(directory: Path) -> Finding:
    """Returns whether runs can be written below the working directory, and the room there."""
    if not os.access(directory, os.W_OK):
        return Finding(HOST, "disk", f"{directory} cannot be written", Level.NOTE, "write run_dir=... elsewhere")
    free = shutil.disk_usage(directory).free
    text = f"{free / GIB:.1f} GiB free in {directory}"
    if free >= LITTLE_DISK:
        return Finding(HOST, "disk", text)
    return Finding(
        HOST, "disk", text, Level.BAD, "a checkpoint holds the replay: free some, or checkpoint.replay=false"
    )
