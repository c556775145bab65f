"""`offpolicy doctor` prints findings with their fixes, and fails only where no training can work."""

from __future__ import annotations

import json
from typing import Any

import pytest

from offpolicy.commands import doctor as command
from offpolicy.commands.doctor import doctor, lines
from offpolicy.launch.finding import Finding, Level

FINE = Finding("machine", "clock", "tsc")
SLOW = Finding("machine", "cores", "1 of 8", Level.SLOW, "allow a second")
BROKEN = Finding("software", "torch", "not installed", Level.BROKEN, "pip install torch")


def found_here(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    monkeypatch.setattr(command, "host_findings", lambda: iter(findings))
    for name in ("installation", "torch_findings", "drawing"):
        monkeypatch.setattr(command, name, lambda: iter(()))


@pytest.mark.parametrize(("findings", "code"), [((FINE, SLOW), 0), ((FINE, BROKEN), 2)])
def test_it_fails_only_where_no_training_can_work(
    monkeypatch: pytest.MonkeyPatch, findings: tuple[Finding, ...], code: int
) -> None:
    found_here(monkeypatch, *findings)
    assert doctor(as_json=False) == code


def test_the_worst_comes_first_with_its_fix() -> None:
    text = list(lines([FINE, SLOW, BROKEN]))
    fixes = [line for line in text if line in ("  torch: pip install torch", "  cores: allow a second")]
    assert fixes == ["  torch: pip install torch", "  cores: allow a second"]
    assert "training works here: offpolicy train algo=sac" not in text
    assert list(lines([FINE]))[-1] == "training works here: offpolicy train algo=sac"


def test_json_has_every_finding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found_here(monkeypatch, FINE, BROKEN)
    doctor(as_json=True)
    content = json.loads(capsys.readouterr().out)
    assert content["can_train"] is False
    assert [each["name"] for each in content["findings"]] == ["clock", "torch"]


@pytest.mark.slow
@pytest.mark.mp
def test_the_command_line_checks_this_machine(run_cli: Any) -> None:
    result = run_cli(["doctor", "--json"], timeout=110)
    assert result.returncode == 0, result.stderr
    names = {each["name"] for each in json.loads(result.stdout)["findings"]}
    assert {"python", "torch", "cores", "memory", "clock", "MUJOCO_GL=egl"} <= names
