"""conf/ shows what a run does: each value there is the dataclass default or states it, and says what it means."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from offpolicy.config.overrides import conf_dir
from offpolicy.config.parsing import plain
from offpolicy.config.schema import RunConfig, all_keys
from offpolicy.config.sections import ALGORITHMS, RUNNER_DEFAULT_MODE, AlgoConfig

SHOWN = ("config.yaml", "algo/*.yaml", "runner/*.yaml", "logging/default.yaml")  # files that show defaults
ENTRY = re.compile(r"( *)(\w+): ?([^#]*?)(?:  # (.*))?")
DEFAULT_STATED = re.compile(r" \(default: (.*)\)$")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One value of a file: its dotted key, itself, and its comment without the stated default."""

    file: str
    key: str
    value: Any
    doc: str
    stated_default: Any


def entries(path: Path) -> Iterator[Entry]:
    """The values of a file outside its defaults list."""
    lines = path.read_text().splitlines()
    is_global = "# @package _global_" in lines or path.name == "config.yaml"
    sections: list[str] = [] if is_global else [path.parent.name]
    root, comment = len(sections), ""
    for line in lines:
        text = line.strip()
        if text.startswith("#"):
            comment = f"{comment} {text.removeprefix('#').strip()}".strip()
            continue
        match = ENTRY.fullmatch(line)
        if match is None or text == "defaults:":
            comment = ""
            continue
        indent, name, value, trailing = match.groups()
        sections = [*sections[: root + len(indent) // 2], name]
        if value:
            words = comment if trailing is None else trailing
            stated = DEFAULT_STATED.search(words)
            default = yaml.safe_load(stated.group(1)) if stated else None
            yield Entry(
                f"{path.parent.name}/{path.name}", ".".join(sections), yaml.safe_load(value),
                DEFAULT_STATED.sub("", words), default if stated else yaml.safe_load(value),
            )  # fmt: skip
        comment = ""


def fields(cls: Any = RunConfig, prefix: str = "") -> dict[str, dataclasses.Field[Any]]:
    found: dict[str, dataclasses.Field[Any]] = {}
    hints = typing.get_type_hints(cls)
    for spec in dataclasses.fields(cls):
        hint = hints[spec.name]
        nested = fields(hint, f"{prefix}{spec.name}.") if dataclasses.is_dataclass(hint) else {prefix + spec.name: spec}
        found |= nested
    return found


FIELDS = fields()
FILES = sorted({path for pattern in SHOWN for path in conf_dir().glob(pattern)})
ENTRIES = [entry for path in FILES for entry in entries(path)]
NAMES = ("algo.name", "runner.name")  # which a file gives to itself


def default_of(key: str) -> Any:
    value: Any = RunConfig()
    for part in key.split("."):
        value = getattr(value, part)
    return plain(value)


def test_a_shown_value_is_the_default_or_states_it() -> None:
    for entry in ENTRIES:
        assert entry.key in FIELDS
        if entry.key not in NAMES:
            assert entry.stated_default == default_of(entry.key), f"{entry.file}: {entry.key}"
            assert entry.doc.startswith(FIELDS[entry.key].metadata["doc"]), f"{entry.file}: {entry.key}"


def test_the_file_of_an_algorithm_shows_every_option_that_it_reads() -> None:
    """HORA's file adds to that of APPO, and the files of its stages name the stage. FlashSAC takes no encoder."""
    for algo in sorted({info.name for info in ALGORITHMS}):
        read = {
            f"algo.{spec.name}{'.name' if spec.name == 'network' else ''}"
            for spec in dataclasses.fields(AlgoConfig)
            if algo in {info.name for info in spec.metadata.get("only", ALGORITHMS)}
            and (algo, spec.name) not in (("hora", "stage"), ("flashsac", "network"))
        }
        files = {f"algo/{name}.yaml" for name in ({algo, "appo"} if algo == "hora" else {algo})}
        shown = {entry.key for entry in ENTRIES if entry.file in files and entry.key.startswith("algo.")}
        assert shown - ({"algo.actor_input"} if algo == "hora" else set()) == read, algo


def test_the_file_of_a_runner_shows_its_collection_mode() -> None:
    for runner, expected in RUNNER_DEFAULT_MODE.items():
        (mode,) = (e for e in ENTRIES if e.file == f"runner/{runner}.yaml" and e.key == "collect.mode")
        assert (mode.value, mode.doc.split(": ")[2].split(",")[0]) == (None, expected)


def test_every_key_is_shown_somewhere() -> None:
    """But for the environment's id and the stage, which have groups of their own."""
    assert set(all_keys()) - {entry.key for entry in ENTRIES} == {"env.id", "algo.stage"}


def test_no_two_files_are_equal() -> None:
    files = sorted(conf_dir().rglob("*.yaml"))
    by_content: dict[bytes, list[str]] = {}
    for path in files:
        by_content.setdefault(path.read_bytes(), []).append(path.name)
    assert [names for names in by_content.values() if len(names) > 1] == []
    assert all(yaml.safe_load(path.read_text()) for path in files)  # nor does one hold comments only
