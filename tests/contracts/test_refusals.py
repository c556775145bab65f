"""Wrong values of every key, as they are typed: exit 2 at once, key and range in the text, no process, no directory."""

from __future__ import annotations

import gc
import math
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from offpolicy import cli
from tests.conftest import REPOSITORY
from tests.unit.config.test_sections import CHOSEN, LEAVES, NUMBERS, default_of, outside

LIMIT_S = 1.5
TOGETHER = 20  # wrong values in one command
BOUNDS = ("ge", "gt", "le", "lt")
LIMITED = [key for key in NUMBERS if LEAVES[key].limits.keys() & set(BOUNDS)]
# Keys that name a group are answered with the group.
GROUPS = ("algo.name", "runner.name", "algo.stage")
KEYS = [key for key in LEAVES if key not in GROUPS]
SLOW_FIXTURE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
# Texts that a grammar may stumble over.
NASTY = (
    "",
    " ",
    "???",
    "${seed}",
    "${nosuch}",
    "${",
    "[",
    "]",
    "{a:",
    "'",
    '"',
    "\\",
    "a=b",
    "=",
    ",",
    "~",
    "#",
    "\n",
    "é",
)


def typed(value: Any) -> str:
    """A value in Hydra's grammar: texts are quoted, so that they stay texts."""
    if isinstance(value, str):
        # A backslash counts as one unless a quote, or another one, follows it.
        return (
            '"' + re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + ("\\" if found[2] else "") + found[2], value) + '"'
        )
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(typed, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{typed(item)}" for key, item in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


TEXT = st.text("abx \"\\',:=[", min_size=1, max_size=6).map(lambda text: "t" + text)  # no word that is a choice
NUMBERS_ONLY = st.one_of(st.integers(-(10**20), 10**20), st.floats(allow_subnormal=False))
OTHER_TYPES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.one_of(NUMBERS_ONLY, TEXT, st.just([True])),
    int: st.one_of(st.booleans(), TEXT, st.sampled_from([0.5, math.nan, math.inf]), st.lists(st.integers())),
    float: st.one_of(st.booleans(), TEXT, st.sampled_from([math.nan, math.inf, -math.inf]), st.lists(st.integers())),
    str: st.one_of(NUMBERS_ONLY, st.lists(TEXT)),
    tuple: st.one_of(NUMBERS_ONLY, TEXT, st.sampled_from([[], [64, "t"], [0.5], [True]])),
    dict: st.one_of(NUMBERS_ONLY, TEXT, st.lists(st.integers())),
}


def wrong_value(key: str, draw: Any) -> Any:
    """A value out of the key's range, of another type, no choice of it, or null where that means nothing."""
    leaf = LEAVES[key]
    kinds = [OTHER_TYPES[leaf.kind]]
    if default_of(key) == ():  # a list of names, which may be empty
        kinds = [kinds[0].filter(lambda value: value != [])]
    if key in LIMITED:
        kinds.append(outside(leaf.limits))
    if key in CHOSEN:
        kinds.append(TEXT)
    if not leaf.is_optional:
        kinds.append(st.none())
    return draw(st.one_of(*kinds))


@pytest.fixture
def refusal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Any:  # Callable[[list[str]], tuple[int, str]]
    """`refusal(words)`: exit code and text of `offpolicy train WORDS`, which may start and write nothing."""

    def no_process(*_: Any, **__: Any) -> None:
        raise AssertionError("a process is started")

    monkeypatch.setattr(cli, "train_module", lambda: SimpleNamespace(train=lambda config, **_: 0))
    monkeypatch.setattr(subprocess, "Popen", no_process)
    monkeypatch.setattr(os, "fork", no_process)
    monkeypatch.setattr(os, "posix_spawn", no_process)
    monkeypatch.chdir(tmp_path)

    def refuse(words: list[str]) -> tuple[int, str]:
        # Only the command counts: not other threads of this process, and no collection of what other tests left.
        gc.disable()
        try:
            begin_s = time.thread_time()
            code = cli.main(["train", *words])
            taken_s = time.thread_time() - begin_s
        finally:
            gc.enable()
        assert taken_s < LIMIT_S
        assert os.listdir() == []
        return code, capsys.readouterr().err

    refuse(["seed=1"])  # Hydra is imported
    return refuse


@settings(max_examples=6, suppress_health_check=SLOW_FIXTURE)
@given(data=st.data())
def test_wrong_values_of_all_keys_are_all_refused_with_key_and_range(refusal: Any, data: st.DataObject) -> None:
    for first in range(0, len(KEYS), TOGETHER):
        refuse_all(refusal, {key: wrong_value(key, data.draw) for key in KEYS[first : first + TOGETHER]})


def refuse_all(refusal: Any, values: dict[str, Any]) -> None:
    """Every value is refused in the one text, on a line of its own."""
    code, said = refusal([f"{key}={typed(value)}" for key, value in values.items()])
    assert code == 2
    lines = {line.split(":")[0].strip(): line for line in said.splitlines()[1:]}
    assert sorted(lines) == sorted(values)
    for key, value in values.items():
        assert f"{key}: got {value!r}" in lines[key]
        limits = LEAVES[key].limits
        assert key not in LIMITED or all(str(limits[bound]) in lines[key] for bound in BOUNDS if bound in limits)
        assert all(choice in lines[key] for choice in limits.get("choices", ()))


@settings(max_examples=40, suppress_health_check=SLOW_FIXTURE)
@given(key=st.sampled_from(list(LEAVES)), text=st.one_of(st.text(max_size=8), st.sampled_from(NASTY)))
def test_whatever_is_typed_is_taken_or_refused_with_its_key(refusal: Any, key: str, text: str) -> None:
    assume("\0" not in text)  # which no command line holds
    code, said = refusal([f"{key}={text}"])
    assert code in (0, 2)
    assert code == 0 or f"\n  {key}" in said
    assert "Traceback" not in said


# What the command does before it refuses: an audit hook writes it down.
AUDIT = """
import os, sys
EVENTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.mkdir", "os.rename")
def note(event, arguments):
    if event in EVENTS:
        os.write(2, f"audit: {event} {arguments}\\n".encode())
sys.addaudithook(note)
"""


@pytest.mark.mp
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("algo.gamma=2", "algo.gamma: got 2, allowed a number in [0.0, 1.0]"),
        ("env.num_envs=0", "env.num_envs: got 0, allowed a whole number in [1, 65536]"),
        ("log.panel=of", "log.panel: got 'of', allowed one of auto, on, off, full; did you mean off?"),
        ("algo.hidden_dims=[]", "algo.hidden_dims: got [] (list), allowed a list of whole numbers in [1, inf)"),
        ("device=gpu", "device: got 'gpu', allowed auto, cpu, cuda or cuda:<index>"),
        ("seed=-1", "seed: got -1, allowed a whole number in [0, 2147483648)"),
    ],
)
def test_the_command_refuses_before_it_starts_or_makes_anything(tmp_path: Path, word: str, said: str) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "sitecustomize.py").write_text(AUDIT)
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}/audit:{REPOSITORY}"}
    command = [sys.executable, "-m", "offpolicy.cli", "train", word, f"run_dir={tmp_path}/run"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "audit:" not in done.stderr
    assert os.listdir(tmp_path) == ["audit"]
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < LIMIT_S


def test_an_example_is_typed_as_it_is() -> None:
    assert typed(['a"b\\', 0.5, None]) == '["a\\"b\\\\",0.5,null]'
    assert typed({"a": True}) == "{a:true}"
    assert math.isnan(float(typed(math.nan)))
