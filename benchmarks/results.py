"""`benchmarks/results/<benchmark>-<machine>.json`: a list of entries, one per benchmark run, each repeat on a line."""

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offpolicy.machine import CPU_INFO, cpu_model, versions

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
Entry = dict[str, Any]  # Any: the JSON data of one benchmark


def facts_now(benchmark: str) -> Entry:
    """Returns what is known of a benchmark run before it has measured anything."""
    cores = len(os.sched_getaffinity(0))
    return {
        "benchmark": benchmark,
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": commit(),
        "hardware": {
            "cpu": cpu_model(),
            "cpu_version": cpu_version(),
            "machine_cores": os.cpu_count() or cores,
            "cores": cores,
            "machine": platform.machine(),
            "kernel": platform.release(),
        },
        "versions": versions() | {"python": platform.python_version()},
    }


def path_of(entry: Entry) -> Path:
    """Returns the file of an entry, such as `parts-amd-epyc-25-17-2c.json`: family and model follow the name."""
    hardware = entry["hardware"]
    name = re.sub(r"\((r|tm)\)", "", str(hardware["cpu"]).lower())
    family, model, _ = str(hardware["cpu_version"]).split("/")
    words = [entry["benchmark"], *re.findall(r"[a-z0-9]+", name), family, model, f"{hardware['cores']}c"]
    return RESULTS / f"{'-'.join(words)}.json"


def save(entry: Entry) -> Path:
    """Writes an entry in place of the one that was started at the same time, or after the others."""
    path = path_of(entry)
    entries = [one for one in read_entries(path) if one["started"] != entry["started"]]
    write_text(path, "[\n" + ",\n".join(one_per_line(one, "tasks") for one in [*entries, entry]) + "\n]\n")
    return path


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all. Results are published: they hold no path of the machine that measured them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_text(text.replace(f"{REPOSITORY}/", "").replace(f"{tempfile.gettempdir()}/", "<tmp>/"))
    draft.replace(path)


def one_per_line(content: Entry, key: str) -> str:
    """Returns the JSON of a mapping whose last part, the mapping under `key`, has a line for each item."""
    head = compact({name: value for name, value in content.items() if name != key})[:-1]
    items = ",\n".join(f"{compact(name)}:{compact(value)}" for name, value in content[key].items())
    return f'{head},"{key}":{{\n{items}\n}}}}'


def compact(value: Any) -> str:  # Any: JSON data
    """Returns JSON without spaces, with eight digits of each number."""
    return json.dumps(_rounded(value), separators=(",", ":"), ensure_ascii=False)


def _rounded(value: Any) -> Any:  # Any: JSON data
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, (list, tuple)) else value


def read_entries(path: Path) -> list[Entry]:
    """Returns the entries of a file of results; none where there is no such file."""
    found: list[Entry] = json.loads(path.read_text()) if path.is_file() else []
    return found


def all_entries() -> list[Entry]:
    """Returns the entries of all files in the order of their start."""
    found = [entry for path in RESULTS.glob("*.json") for entry in read_entries(path)]
    return sorted(found, key=lambda entry: str(entry["started"]))


def machine_kind(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns what machines whose numbers may be compared share: processor, cores, architecture, torch."""
    hardware = entry["hardware"]
    names = ("cpu", "cpu_version", "machine_cores", "cores", "machine")
    return *(str(hardware.get(name, "unknown")) for name in names), f"torch {entry['versions']['torch']}"


def commit() -> str:
    """Returns the short commit, with `-dirty` where anything but results and documents differs from it."""
    try:
        name = _git("rev-parse", "--short", "HEAD").strip()
        changes = _git("status", "--porcelain", "--", ".", ":!benchmarks/results", ":!docs")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("-dirty" if changes else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


def cpu_version() -> str:
    """Returns family, model and stepping of the processor, such as 25/17/1: generations may share a name."""
    pairs = (line.partition(":") for line in CPU_INFO.read_text().splitlines())
    found = {key.strip(): value.strip() for key, _, value in pairs}
    return "/".join(found.get(name, "unknown") for name in ("cpu family", "model", "stepping"))
