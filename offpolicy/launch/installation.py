"""What is installed: Python, packages and their ranges, versions known to be bad, torch, GPUs, and renderers."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from offpolicy.calls import ChildError, call_in_child
from offpolicy.launch.finding import Finding, Level
from offpolicy.machine import has_gpu
from offpolicy.machine_load import driver_version

SOFTWARE, GPU, DRAWING = "software", "gpu", "drawing"  # sections
TESTED_PYTHON = ((3, 11), (3, 13))
CHILD_S = 60.0  # torch on a cold disk
GL_BACKENDS = ("egl", "osmesa", "glfw")
GL_FIXES = {
    "egl": "apt-get install libegl1, or a GPU driver with EGL",
    "osmesa": "apt-get install libosmesa6",
    "glfw": "a display (DISPLAY or WAYLAND_DISPLAY) and apt-get install libglfw3",
}
SQUARE = "<mujoco><worldbody><light pos='0 0 3'/><geom type='box' size='1 1 1'/></worldbody></mujoco>"


@dataclass(frozen=True, slots=True)
class BadVersion:
    """A version that a range may allow and that does harm, alone or beside another package."""

    package: str
    versions: str  # PEP 440
    harm: str
    fix: str
    beside: str = ""  # another package, and
    beside_versions: str = ""  # the versions of it that the harm needs


KNOWN_BAD = (
    BadVersion(
        *("mujoco", "==4.0.0", "the sparse Newton solver diverges on some models (MuJoCo #3767)"),
        "pip install 'mujoco>=3.17,!=4.0.0'",
    ),
    BadVersion(
        *("gymnasium-robotics", "<=1.4.2", "its hand environments fail: MuJoCo's enums compare differently since 3.12"),
        *("pip install -U gymnasium-robotics, once a later version is out, or use mujoco 3.11", "mujoco", ">=3.12"),
    ),
)


def installation() -> Iterator[Finding]:
    """Yields the findings about Python and the packages."""
    yield python_finding(sys.version_info[:3])
    try:
        wanted = [Requirement(line) for line in metadata.requires("offpolicy") or ()]
    except metadata.PackageNotFoundError:
        fix = "pip install . in the checkout"
        yield Finding(SOFTWARE, "offpolicy", "not installed: its ranges are not checked", Level.NOTE, fix)
        wanted = []
    needed = [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    versions = installed_versions()
    yield from (package_finding(each, versions) for each in needed)
    yield from bad_versions(versions)


def installed_versions() -> dict[str, str]:
    """Returns the version of every installed distribution, by lower-case name."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # a broken installation has left a directory without metadata
            found.setdefault(name.lower().replace("_", "-"), distribution.version)
    return found


def python_finding(version: Sequence[int]) -> Finding:
    """Returns the finding about the interpreter."""
    text, (first, last) = ".".join(map(str, version)), TESTED_PYTHON
    tested = f"{first[0]}.{first[1]} to {last[0]}.{last[1]}"
    if tuple(version[:2]) < first:
        return Finding(SOFTWARE, "python", text, Level.BROKEN, f"use Python {tested}")
    if tuple(version[:2]) > last:
        return Finding(SOFTWARE, "python", f"{text}, not tested", Level.NOTE, f"the tests run with {tested}")
    return Finding(SOFTWARE, "python", text)


def package_finding(wanted: Requirement, versions: Mapping[str, str]) -> Finding:
    """Returns whether a dependency is there, within its range."""
    version, install = versions.get(wanted.name.lower().replace("_", "-")), f"pip install '{_plain(wanted)}'"
    if version is None:
        return Finding(SOFTWARE, wanted.name, "not installed", Level.BROKEN, install)
    if not wanted.specifier.contains(version, prereleases=True):
        return Finding(SOFTWARE, wanted.name, f"{version}, allowed {wanted.specifier}", Level.BAD, install)
    return Finding(SOFTWARE, wanted.name, version)


def _plain(wanted: Requirement) -> str:
    extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
    return f"{wanted.name}{extras}{wanted.specifier}"


def bad_versions(versions: Mapping[str, str]) -> Iterator[Finding]:
    """Yields what is installed and known to do harm."""
    for bad in KNOWN_BAD:
        beside = versions.get(bad.beside, "") if bad.beside else "0"
        if bad.package not in versions or not beside:
            continue
        is_bad = SpecifierSet(bad.versions).contains(versions[bad.package], prereleases=True)
        if is_bad and (not bad.beside or SpecifierSet(bad.beside_versions).contains(beside, prereleases=True)):
            yield Finding(SOFTWARE, bad.package, f"{versions[bad.package]}: {bad.harm}", Level.BAD, bad.fix)


def torch_findings() -> Iterator[Finding]:
    """Yields what torch can use. A child process imports it: the commands stay without."""
    try:
        found: Mapping[str, Any] = call_in_child("offpolicy.launch.installation:probe_torch", timeout_s=CHILD_S)
    except ChildError as error:
        why = (error.output.splitlines() or [error.reason])[-1]
        fix = "python -c 'import torch' shows the whole error; reinstall torch"
        yield Finding(SOFTWARE, "import torch", why, Level.BROKEN, fix)
        return
    yield from kernels(found)
    yield from gpus(found, has_driver=has_gpu(), driver=driver_version())


def probe_torch(_: None) -> dict[str, Any]:  # Any: JSON values
    """Runs in the child of `torch_findings`."""
    import torch

    error, found = "", list[dict[str, Any]]()
    try:
        if torch.version.cuda is not None:
            torch.cuda.current_device()  # raises what is wrong with the driver
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            major, minor = torch.cuda.get_device_capability(index)
            name = torch.cuda.get_device_name(index)
            found.append({"name": name, "capability": f"{major}.{minor}", "free": free, "total": total})
    except (RuntimeError, AssertionError) as problem:
        error = str(problem).splitlines()[0]
    return {
        "cuda": torch.version.cuda,
        "vector": torch.backends.cpu.get_cpu_capability(),
        "mkl": torch.backends.mkl.is_available(),  # type: ignore[no-untyped-call]  # of torch
        "gpus": found,
        "error": error,
    }


def kernels(found: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields which instructions and which library torch uses on the CPU."""
    vector = str(found["vector"])
    if vector in ("DEFAULT", "NO AVX"):
        fix = "unset ATEN_CPU_CAPABILITY, or use a processor with AVX2"
        yield Finding(SOFTWARE, "torch on CPU", f"{vector}: no vector instructions", Level.SLOW, fix)
    elif not found["mkl"]:
        fix = "install torch from PyPI, whose x86-64 builds have MKL"
        yield Finding(SOFTWARE, "torch on CPU", f"{vector}, without MKL", Level.SLOW, fix)
    else:
        yield Finding(SOFTWARE, "torch on CPU", f"{vector}, MKL")


def gpus(found: Mapping[str, Any], *, has_driver: bool, driver: str | None) -> Iterator[Finding]:
    """Yields the GPUs that torch can use, or why it can use none."""
    cuda = found["cuda"]
    if driver is not None:
        yield Finding(GPU, "driver", driver)
    if not found["gpus"]:
        yield _no_gpu(cuda, str(found["error"]), has_driver=has_driver)
    for index, gpu in enumerate(found["gpus"]):
        free, total = (gpu[key] / 2**30 for key in ("free", "total"))
        text = f"{gpu['name']}, {free:.1f} of {total:.1f} GiB free, compute {gpu['capability']}, CUDA {cuda}"
        fix = "another program holds most of its memory; nvidia-smi names it" if free < total / 2 else ""
        yield Finding(GPU, f"cuda:{index}", text, Level.NOTE if fix else Level.OK, fix)


def _no_gpu(cuda: str | None, error: str, *, has_driver: bool) -> Finding:
    if not has_driver:
        return Finding(GPU, "cuda", "no GPU driver: device=auto is the CPU")
    if cuda is None:
        fix = "install the CUDA build: pip install torch, without an index of CPU builds"
        return Finding(GPU, "cuda", "a GPU driver, but torch is a CPU build", Level.SLOW, fix)
    why = error or "torch sees no device"
    fix = "a torch build for this driver's CUDA, or a newer driver; CUDA_VISIBLE_DEVICES must name a device"
    return Finding(GPU, "cuda", f"a GPU driver, but {why} (torch for CUDA {cuda})", Level.SLOW, fix)


def drawing() -> Iterator[Finding]:
    """Yields which of MuJoCo's renderers draw a picture here, each tried in a process of its own."""
    failures = dict[str, str]()
    for backend in GL_BACKENDS:
        with contextlib.suppress(ChildError):
            call_in_child("offpolicy.launch.installation:draw", backend, timeout_s=CHILD_S)
            yield Finding(DRAWING, f"MUJOCO_GL={backend}", "draws")
            continue
        failures[backend] = GL_FIXES[backend]
    is_dark = len(failures) == len(GL_BACKENDS)
    for backend, fix in failures.items():
        level = Level.NOTE if is_dark else Level.OK  # one that works is enough
        yield Finding(DRAWING, f"MUJOCO_GL={backend}", "does not draw", level, fix if is_dark else "")


def draw(backend: str) -> bool:
    """Runs in the child of `drawing`: draws a box and raises where the picture is empty."""
    os.environ["MUJOCO_GL"] = backend
    mujoco: Any = importlib.import_module("mujoco")  # Any: it has no types
    model = mujoco.MjModel.from_xml_string(SQUARE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with mujoco.Renderer(model, 32, 32) as renderer:
        renderer.update_scene(data)
        if not renderer.render().any():
            raise RuntimeError(f"{backend} draws black")
    return True
