"""A bad hook is refused without being imported by the caller."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from offpolicy.collect import episode_hook
from offpolicy.collect.episode_hook import EpisodeHook, HookConfig, HookResult, _Worker, check_hook
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.launch import preflight
from tests.held_process import HeldProcess

MODULE = """
import os, sys
print("loud")
if os.environ.get("HOOK_END") == "killed":
    os.kill(os.getpid(), 9)
if os.environ.get("HOOK_END") == "hung":
    import threading
    threading.Event().wait()
def works(episode): pass
number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the directory that the command is given in."""
    (tmp_path / "some_hooks.py").write_text(MODULE)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.chdir(tmp_path)
    return "some_hooks"


def test_a_hook_that_works_is_accepted_and_not_imported_here(module: str) -> None:
    check_hook(f"{module}:works")
    assert module not in sys.modules


@pytest.mark.parametrize(
    ("hook", "cause"),
    [
        ("some_hooks:nothing", "AttributeError: module 'some_hooks' has no attribute 'nothing'"),
        ("no_such_hooks:works", "ModuleNotFoundError: No module named 'no_such_hooks'"),
        ("some_hooks:number", "TypeError: number is int, which cannot be called"),
    ],
)
def test_a_name_of_no_function_is_refused_with_the_cause(module: str, hook: str, cause: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_hook(hook)
    assert raised.value.problems == (f"eval.hook: got {hook!r}, allowed module:function: {cause}",)


@pytest.mark.parametrize(("end", "cause"), [("killed", "was killed by SIGKILL"), ("hung", "took longer than 1 s")])
def test_a_module_that_ends_its_process_or_never_ends_is_refused(
    monkeypatch: pytest.MonkeyPatch, module: str, end: str, cause: str
) -> None:
    monkeypatch.setenv("HOOK_END", end)
    monkeypatch.setattr(episode_hook, "START_TIMEOUT_S", 60.0 if end == "killed" else 1.0)
    with pytest.raises(ConfigError, match=cause):
        check_hook(f"{module}:works")


def test_preflight_looks_at_the_hook_where_there_are_episodes(module: str) -> None:
    tree = {"env": {"id": "offpolicy.envs.toy:PointMass-v0"}, "device": "cpu"}
    hook = f"{module}:nothing"
    with pytest.raises(ConfigError, match=r"^eval\.hook: got 'some_hooks:nothing'"):
        preflight.preflight(RunConfig.from_mapping({**tree, "eval": {"hook": hook}}))
    preflight.preflight(RunConfig.from_mapping({**tree, "eval": {"hook": hook, "episodes": 0}}))


def test_preflight_looks_at_the_hook_of_training_episodes(module: str) -> None:
    tree = {"env": {"id": "offpolicy.envs.toy:PointMass-v0"}, "device": "cpu", "collect": {"hook": f"{module}:nothing"}}
    with pytest.raises(ConfigError, match=r"^collect\.hook: got 'some_hooks:nothing'"):
        preflight.preflight(RunConfig.from_mapping(tree))


def test_a_worker_that_the_kernel_holds_is_given_up() -> None:
    results, held = list[HookResult](), HeldProcess()
    hook = EpisodeHook(HookConfig("json:dumps", 2, 10.0), lambda: False, results.append)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    hook._worker = _Worker(held, ours)  # type: ignore[arg-type]  # a fake process
    hook._in_flight.append(7)
    hook._fail_worker(0.0)
    theirs.close()
    assert (held.was_killed, held.limits_s) == (True, [0.0, 30.0])
    assert results == [HookResult(7, None, "the worker of the hook was killed by SIGKILL")]
