"""`benchmarks/results/learning/<study>.json`: the raw curve of every seed, and the policies that learn nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.learning.studies import Study, agree
from benchmarks.results import compact, one_per_line

Raw = dict[str, Any]  # Any: the JSON data of one run
NOTHING_LEARNT = "nothing-learnt"
INFERENCE = "hand-inference"


def path_of(name: str, results_dir: Path | None = None) -> Path:
    """Where the data of a study are: in `results_dir`, or with the published results."""
    return (results_dir or results.RESULTS / "learning") / f"{name}.json"


def runs_of(study: Study, results_dir: Path | None = None) -> dict[int, Raw]:
    """The runs of a study by seed; none of another configuration than the study has today."""
    found = _read(path_of(study.key, results_dir))
    if not agree(found.get("configuration", {}), study.configuration()):
        return {}
    return {int(seed): run for seed, run in found.get("runs", {}).items()}


def save_run(study: Study, seed: int, run: Raw, results_dir: Path | None = None) -> None:
    """Writes the file of a study with this run in place of what it had of the seed."""
    runs = {**runs_of(study, results_dir), seed: run}
    by_seed = {str(number): runs[number] for number in sorted(runs)}
    content = {"command": study.command, "configuration": study.configuration(), "runs": by_seed}
    _write(path_of(study.key, results_dir), content)


def policies_of(env_id: str) -> dict[str, Raw]:
    """What policies that learn nothing earn in an environment, by policy; empty where nobody has looked."""
    found: dict[str, Raw] = _read(path_of(NOTHING_LEARNT)).get(env_id, {})
    return found


def save_policies(env_id: str, policies: dict[str, Raw]) -> None:
    """Writes what policies that learn nothing earn in an environment, beside those that are there."""
    found = _read(path_of(NOTHING_LEARNT))
    _write(path_of(NOTHING_LEARNT), dict(sorted({**found, env_id: {**found.get(env_id, {}), **policies}}.items())))


def inference() -> Raw:
    """What `hand_inference` has measured; empty where it was not run."""
    return _read(path_of(INFERENCE))


def save_inference(found: Raw) -> None:
    """Writes what `hand_inference` has measured."""
    _write(path_of(INFERENCE), found)


def _read(path: Path) -> Raw:
    return json.loads(path.read_text()) if path.is_file() else {}


def _write(path: Path, content: Raw) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    text = one_per_line(content, "runs") if "runs" in content else _one_per_line(content)
    draft.write_text(text + "\n")
    draft.replace(path)


def _one_per_line(content: Raw) -> str:
    return "{\n" + ",\n".join(f"{compact(name)}:{compact(value)}" for name, value in content.items()) + "\n}"
