"""`benchmarks/results/learning/<study>.json`: the raw curve of every seed, and the policies that learn nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.learning.studies import Study, agree

Raw = dict[str, Any]  # Any: the JSON data of one run
NOTHING_LEARNT = "nothing-learnt"


def path_of(name: str, directory: Path | None = None) -> Path:
    """Returns where the data of a study are: in `directory`, or with the published results."""
    return (directory or results.RESULTS / "learning") / f"{name}.json"


def read(name: str, directory: Path | None = None) -> Raw:
    """Returns the data of a file; empty where there is none."""
    path = path_of(name, directory)
    return json.loads(path.read_text()) if path.is_file() else {}


def runs_of(study: Study, directory: Path | None = None) -> dict[int, Raw]:
    """Returns the runs of a study by seed; none of another configuration than the study has today."""
    found = read(study.key, directory)
    if not agree(found.get("configuration", {}), study.configuration()):
        return {}
    return {int(seed): run for seed, run in found.get("runs", {}).items()}


def save_run(study: Study, seed: int, run: Raw, directory: Path | None = None) -> None:
    """Writes the file of a study with this run in place of what it had of the seed."""
    runs = {**runs_of(study, directory), seed: run}
    by_seed = {str(number): runs[number] for number in sorted(runs)}
    content = {"command": study.command, "configuration": study.configuration(), "runs": by_seed}
    results.write_text(path_of(study.key, directory), results.one_per_line(content, "runs") + "\n")


def policies_of(env_id: str) -> dict[str, Raw]:
    """Returns what policies that learn nothing earn in an environment, by policy; empty where it is not measured."""
    found: dict[str, Raw] = read(NOTHING_LEARNT).get(env_id, {})
    return found


def save_policies(env_id: str, policies: dict[str, Raw]) -> None:
    """Writes what policies that learn nothing earn in an environment, beside those that are there."""
    save(NOTHING_LEARNT, dict(sorted({**read(NOTHING_LEARNT), env_id: policies_of(env_id) | policies}.items())))


def save(name: str, content: Raw) -> None:
    """Writes a file of the published results, each value of it on a line."""
    items = ",\n".join(f"{results.compact(key)}:{results.compact(value)}" for key, value in content.items())
    results.write_text(path_of(name), f"{{\n{items}\n}}\n")
