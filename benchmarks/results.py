"""`benchmarks/results/<benchmark>-<machine>.json`: every repeat on a line, and all that is needed to measure it again.

The file holds a list, one entry per benchmark run on that machine: nothing measured is overwritten. A benchmark in
pieces (`Journal`) has one entry, in which every call continues.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from offpolicy.machine import CPU_INFO, cpu_model, versions

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
Entry = dict[str, Any]  # Any: the JSON data of one benchmark


class ResultFile:
    """The entry of one benchmark run, rewritten after every repeat so that an interrupted run keeps what it has."""

    def __init__(self, benchmark: str) -> None:
        facts = facts_now(benchmark)
        self.path = RESULTS / f"{benchmark}-{machine_slug(facts['hardware'])}.json"
        self._others: list[Entry] = read_entries(self.path)
        self._facts = facts

    @classmethod
    def reopened(cls, path: Path, index: int) -> ResultFile:
        """The file whose entry number `index` is written anew."""
        file = cls.__new__(cls)
        file.path, file._others = path, read_entries(path)
        file._facts = file._others.pop(index)
        return file

    def check_commit(self) -> None:
        """Raises `SystemExit` where the commit is no longer that of the entry, under whose name results would stand."""
        if (now := commit()) != self._facts["commit"]:
            raise SystemExit(f"commit: got {now}, allowed {self._facts['commit']}, at which this was begun")

    def save(self, **measured: Any) -> None:  # Any: the JSON data of one benchmark
        """Write the entry as it stands now, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f".{self.path.name}.tmp")
        text = text_of([*self._others, {**self._facts, **measured}])
        # Results are published: no path of the machine that measured them.
        text = text.replace(f"{REPOSITORY}/", "").replace(f"{tempfile.gettempdir()}/", "<tmp>/")
        draft.write_text(text)
        draft.replace(self.path)


def facts_now(benchmark: str) -> Entry:
    """What is known of a benchmark run before it has measured anything."""
    return {
        "benchmark": benchmark,
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": commit(),
        "hardware": _hardware(),
        "versions": versions() | {"python": platform.python_version()},
        "load_average_before": os.getloadavg(),
    }


def text_of(entries: Sequence[Entry]) -> str:
    """JSON with one line per entry, and one per task of it."""
    return "[\n" + ",\n".join(one_per_line(entry, "tasks") for entry in entries) + "\n]\n"


def one_per_line(content: Entry, key: str) -> str:
    """JSON of a mapping whose last part, the mapping under `key`, has a line for each item."""
    head = compact({name: value for name, value in content.items() if name != key})[:-1]
    items = ",\n".join(f"{compact(name)}:{compact(value)}" for name, value in content.get(key, {}).items())
    return f'{head},"{key}":{{\n{items}\n}}}}'


def compact(value: Any) -> str:  # Any: JSON data
    """JSON without spaces, with eight digits of each number."""
    return json.dumps(_rounded(value), separators=(",", ":"), ensure_ascii=False)


def _rounded(value: Any) -> Any:  # Any: JSON data
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, (list, tuple)) else value


def read_entries(path: Path) -> list[Entry]:
    """The entries of a file of results; none where there is no such file, and none of one that is a single record."""
    return entries_in(path.read_text()) if path.is_file() else []


def entries_in(text: str) -> list[Entry]:
    """The entries of the text of a file of results."""
    found = json.loads(text)
    return found if isinstance(found, list) else []


def all_entries(directory: Path = RESULTS) -> Iterator[tuple[Path, int, Entry]]:
    """Every entry of a directory of results, with its file and its place in it, in the order of their start."""
    found = [
        (path, index, entry)
        for path in sorted(directory.glob("*.json"))
        for index, entry in enumerate(read_entries(path))
    ]
    yield from sorted(found, key=lambda one: str(one[2].get("started", "")))


def tracked_entries() -> list[Entry]:
    """The entries of the results that are committed or staged, in the order of their start; of all without git."""
    try:
        names = [name for name in git("ls-files", "benchmarks/results").splitlines() if name.endswith(".json")]
        found = [entry for name in names for entry in entries_in(git("show", f":{name}"))]
    except (OSError, subprocess.CalledProcessError):
        return [entry for _, _, entry in all_entries()]
    return sorted(found, key=lambda entry: str(entry.get("started", "")))


def machine_kind(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """What two machines have in common whose numbers may be compared: processor, cores, architecture, torch.

    `cores` are those of the benchmark, `machine_cores` those of the machine.
    """
    hardware = entry.get("hardware", {})
    names = ("cpu", "cpu_version", "machine_cores", "cores", "machine")
    torch = entry.get("versions", {}).get("torch", "unknown")
    return *(str(hardware.get(name, "unknown")) for name in names), f"torch {torch}"


def commit() -> str:
    """The short commit, with `-dirty` when anything but results and documents differs from it."""
    try:
        name = git("rev-parse", "--short", "HEAD").strip()
        is_dirty = bool(changed_files())
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("-dirty" if is_dirty else "")


def changed_files() -> list[str]:
    """Returns the files that differ from the commit, but for results and documents."""
    lines = git("status", "--porcelain", "--", ".", ":!benchmarks/results", ":!docs").splitlines()
    return [line[3:] for line in lines]


def git(*words: str) -> str:
    command = ["git", *words]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


def _hardware() -> dict[str, str | int]:
    cores = len(os.sched_getaffinity(0))
    of_machine = {"cpu_version": cpu_version(), "machine_cores": os.cpu_count() or cores}
    return {
        "cpu": cpu_model(),
        **of_machine,
        "cores": cores,
        "machine": platform.machine(),
        "kernel": platform.release(),
    }


def cpu_version() -> str:
    """Family, model and stepping of the processor, such as 25/17/1: one name may stand for several generations."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.is_file() else []
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return "/".join(found.get(name, "unknown") for name in ("cpu family", "model", "stepping"))


def processor(hardware: Mapping[str, Any]) -> str:
    """The processor with its family and model, as far as they are known: one name may stand for several generations."""
    family, model, _ = str(hardware.get("cpu_version", "unknown/unknown/unknown")).split("/")
    return str(hardware["cpu"]) + ("" if "unknown" in (family, model) else f" (family {family}, model {model})")


def machine_slug(hardware: Mapping[str, Any]) -> str:
    """The hardware in a file name: `amd-epyc-25-17-2c` has family and model after the name."""
    name = re.sub(r"\((r|tm)\)", "", str(hardware["cpu"]).lower())
    family, model, _ = str(hardware["cpu_version"]).split("/")
    return "-".join([*re.findall(r"[a-z0-9]+", name), family, model, f"{hardware['cores']}c"])
