"""Words of the command line that are no `key=value` of ours, and what to write instead: each suggestion was tried."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from offpolicy.config.foreign_names import advice
from offpolicy.config.parsing import KEY_ALLOWED, as_override, is_key, is_within, quoted
from offpolicy.config.sections import AlgorithmInfo
from offpolicy.config.usable import KWARGS, example_word, is_fit, specs

PATHS = ("run_dir", "teacher", "init_from", "replay.demos")
FREE_TEXTS = (*PATHS, "log.wandb_project")  # keys whose value may hold a comma
Options = Mapping[str, Sequence[str]]
# Flags of Hydra, which some know from its own programs; ours has another command, or key, for what they do.
HYDRA_FLAGS = {
    **dict.fromkeys(("multirun", "m"), "a command is one run: for s in 1 2 3; do offpolicy train seed=$s; done"),
    **dict.fromkeys(
        ("config-name", "cn"), "choose a preset with experiment=, or the configuration of a run: config=latest"
    ),
    **dict.fromkeys(("config-path", "cp", "config-dir", "cd"), "the configuration of a run is given as config=latest"),
    **dict.fromkeys(("cfg", "c", "info", "resolve", "p"), "offpolicy train --help all shows every value"),
}


def misshapen(token: str, options: Options, info: AlgorithmInfo) -> str | None:
    """Returns the problem of a word that is no `key=value`; None for one that is."""
    if token.startswith("-"):
        return _dashed(token, options, info)
    if token.startswith("~"):
        key = token[1:].partition("=")[0]
        fix = f"write {key}={as_override(specs()[key].default)}, its default" if key in specs() else "leave it out"
        return f"{token}: keys cannot be deleted; {fix}"
    return None if "=" in token else f"{token}: no '=' in it; {_for_word(token, options, info)}"


def _dashed(token: str, options: Options, info: AlgorithmInfo) -> str:
    """Returns the problem of an option with dashes, `--key value` or `--key=value`."""
    name, _, text = token.lstrip("-").replace(" ", "=", 1).partition("=")
    if name in HYDRA_FLAGS:
        return f"{token}: an option of Hydra; {HYDRA_FLAGS[name]}"
    key = name.replace("-", "_")
    if key in options:
        return f"{token}: overrides have no dashes; write {key}={text or options[key][0]}"
    if is_within(key, (KWARGS,)) and not is_key(key):
        return f"{token}: got the key {key!r}, allowed {KEY_ALLOWED}"
    if is_within(key, (*specs(), KWARGS)) and text and (key not in specs() or is_fit(key, _value(text))):
        return f"{token}: overrides have no dashes; write {key}={text}"
    if key in specs() or is_within(key, (KWARGS,)):
        return f"{token}: overrides have no dashes; write {example_word(key)}"
    return f"{token}: overrides have no dashes; {advice(key, _value(text), info) or _search(key)}"


def _value(text: str) -> Any:  # Any: a value of the configuration
    """Returns the value that a text stands for; YAML takes 1e-3 for a text, which Hydra does not."""
    with contextlib.suppress(ValueError):
        return float(text)
    with contextlib.suppress(yaml.YAMLError):
        return yaml.safe_load(text)
    return text


def _for_word(word: str, options: Options, info: AlgorithmInfo) -> str:
    """Returns what to write for a word without `=`."""
    path = Path(word)
    if os.path.isfile(word) and path.suffix in (".yaml", ".yml"):
        return f"start from the configuration of a run with {shlex.quote(f'config={as_override(word)}')}"
    if os.path.isfile(path / "config.yaml"):
        return f"continue that run with: offpolicy resume {shlex.quote(word)}"
    homes = [group for group, names in options.items() if word in names]
    if homes:
        return f"write {homes[0]}={word}"
    if word in specs() or (is_within(word, (KWARGS,)) and is_key(word)):
        return f"write {example_word(word)}"
    if looks_like_id(word):
        return f"write env.id={word}"
    if word in options:
        return f"write {word}={options[word][0]}"
    return advice(word, None, info) or _search(word)


def _search(word: str) -> str:
    last = word.rsplit(".", 1)[-1]
    is_found = any(last in key for key in specs())
    return f"offpolicy train --help {last if is_found else 'all'} shows the keys"


def instead_of_several(key: str, text: str, options: Options) -> str:
    """Returns what to write for `key=1,2,3`: a list, a text or the first value, as the key takes.

    Of a function of Hydra, such as `range(1,3)`, there is no first value: it is answered with one that the key takes.
    """
    if re.fullmatch(r"\w+\(.*\)", text.strip(), re.DOTALL):
        word = f"{key}={options[key][0]}" if key in options else example_word(key)
        return f"write {word}, and a command for each of the others; offpolicy sweep searches among many"
    first = text.split(",")[0].strip()
    if key in specs() and key not in options:
        if "tuple" in str(specs()[key].hint):
            return f"write {key}=[{text}]"
        if key in FREE_TEXTS:
            return f"write it as text: {key}={shlex.quote(quoted(text))}"
    elif is_within(key, (KWARGS,)):
        return f"write a list as {key}=[{text}]"
    return f"write {key}={first}, and a command for each of the others"


def homes(values: Mapping[str, Any]) -> list[str]:  # Any: a value of the configuration
    """Returns the problems of paths by key that begin with `~`, which only a shell knows."""
    found = {key: values.get(key) for key in PATHS}
    return [
        f"{key}: got {value!r}, allowed the whole path, such as {os.path.expanduser(value)!r}"
        for key, value in found.items()
        if isinstance(value, str) and value.startswith("~")
    ]


def looks_like_id(text: str) -> bool:
    """True for what is written like a Gymnasium id: `Hopper-v5`, `ALE/Pong-v5` or `module:Id-v0`."""
    return re.fullmatch(r"([\w.]+:)?([\w-]+/)?[\w.-]+-v\d+", text) is not None
