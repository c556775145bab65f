"""Faults on purpose: what the variable means, where and when a fault happens, and that off is off."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpolicy import fault
from offpolicy.errors import ConfigError


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    fault.arm("learner", environ={})


def armed(text: str, role: str = "learner", rank: int = 0, **environ: str) -> None:
    fault.arm(role, rank, {fault.VARIABLE: text, **environ})


def raises_at(site: str) -> bool:
    try:
        fault.hit(site)
    except OSError:
        return True
    return False


def test_an_errno_is_raised_at_its_site_only() -> None:
    armed("disk.write:ENOSPC")
    assert not raises_at("disk.fsync")
    with pytest.raises(OSError, match="injected at disk.write") as caught:
        fault.hit("disk.write")
    assert caught.value.errno == errno.ENOSPC


def test_n_is_the_one_visit_at_which_it_happens() -> None:
    armed("disk.write@n=3:EIO")
    assert [raises_at("disk.write") for _ in range(5)] == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("where", "role", "rank", "expected"),
    [
        ("role=learner", "learner", 1, True),
        ("role=learner", "collector", 0, False),
        ("rank=1", "learner", 1, True),
        ("role=learner,rank=1", "learner", 0, False),
    ],
)
def test_role_and_rank_choose_the_process(where: str, role: str, rank: int, expected: bool) -> None:
    armed(f"disk.write@{where}:EIO", role, rank)
    assert raises_at("disk.write") is expected


def test_with_a_directory_each_fault_happens_once_whoever_comes_by(tmp_path: Path) -> None:
    once = {fault.ONCE_VARIABLE: str(tmp_path)}
    armed("disk.write@n=2:EIO;disk.fsync:EIO", **once)
    assert [raises_at("disk.write") for _ in range(2)] == [False, True]
    assert os.listdir(tmp_path) == ["0"]
    armed("disk.write@n=2:EIO;disk.fsync:EIO", "collector", **once)  # a process that is started again
    assert [raises_at("disk.write") for _ in range(3)] == [False, False, False]
    assert [raises_at("disk.fsync") for _ in range(2)] == [True, False]


@pytest.mark.parametrize(("action", "code"), [("kill", -signal.SIGKILL), ("exit:9", 9)])
def test_a_process_ends_at_the_site(action: str, code: int) -> None:
    program = "from offpolicy import fault; fault.arm('learner'); fault.hit('disk.write'); print('alive')"
    environ = {**os.environ, fault.VARIABLE: f"disk.write:{action}"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (code, b"")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "got 'nonsense', allowed site"),
        ("disk.wirte:EIO", "got site 'disk.wirte', allowed one of disk.mkdir"),
        ("disk.write:explode", "got action 'explode', allowed kill, hang, delay:<ms>, exit:<code>, <errno>"),
        ("disk.write:exit", "got action 'exit', allowed kill, hang, delay:<ms>, exit:<code>, <errno>"),
        ("disk.write:kill:3", "got action 'kill:3', allowed kill, hang, delay:<ms>, exit:<code>, <errno>"),
        ("ring.copied:EIO", "got ring.copied:EIO, allowed kill, hang, delay:<ms>, exit:<code>: ring.copied is nothing"),
        ("disk.write@role=boss:EIO", "got @role=boss, allowed role=supervisor"),
        ("disk.write@n=x:EIO", "got @n=x, allowed role="),
        ("disk.write@when=3:EIO", "got @when=3, allowed role="),
    ],
)
def test_a_mistake_is_refused_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="OFFPOLICY_FAULT") as caught:
        armed(text)
    assert said in str(caught.value)


def test_the_supervisor_says_that_faults_are_injected(capsys: pytest.CaptureFixture[str]) -> None:
    armed("disk.write@role=collector:EIO", "supervisor")
    assert "OFFPOLICY_FAULT=disk.write@role=collector:EIO injects faults" in capsys.readouterr().err
