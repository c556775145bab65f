"""The sites of fault injection: the list names all that are in the code, and chaos knows which process comes by."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from offpolicy import fault
from tests.chaos.disturbances import NOT_PASSED, PASSED_BY
from tests.fakes import refused
from tests.faults import SITES, VARIABLE

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_list_holds_exactly_the_sites_of_the_code_and_chaos_knows_them() -> None:
    texts = [path.read_text() for package in ("offpolicy", "runners") for path in (REPOSITORY / package).rglob("*.py")]
    assert {site for text in texts for site in re.findall(r'\bfault\.hit\("([a-z_.]+)"', text)} == set(SITES)
    assert PASSED_BY.keys() | NOT_PASSED == set(SITES)


def test_a_fault_happens_in_its_process_at_its_site_and_visit() -> None:
    program = "from offpolicy import fault; fault.arm('learner', 1); fault.hit('disk.write'); fault.hit('disk.write')"
    environ = {**os.environ, VARIABLE: "disk.write@role=learner,rank=0:exit:9;disk.write@role=learner,rank=1,n=2:kill"}
    assert subprocess.run([sys.executable, "-c", program], env=environ, check=False).returncode == -signal.SIGKILL
    with refused("disk.write:ENOSPC"):
        fault.hit("disk.fsync")
        with pytest.raises(OSError, match="injected at disk.write"):
            fault.hit("disk.write")
