"""What the processes of a run leave behind ends with it."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from offpolicy.processes.children import adopting, end_adopted, own_children, reap_adopted
from tests.unit.processes.conftest import wait_until

# Starts a shell that waits for its child, a sleep, and one without environment, in other sessions, and leaves.
LEAVE = (
    "import subprocess; start = lambda env, *c: subprocess.Popen(c, start_new_session=True, env=env);"
    " start(None, 'sh', '-c', 'sleep 60; :'); start(None, 'sleep', '60'); start({}, '/bin/sleep', '60')"
)


@pytest.mark.promise("no-orphan")
def test_what_a_child_leaves_behind_is_adopted_and_killed_with_its_own_children() -> None:
    with ThreadPoolExecutor(1) as thread, adopting():
        other = thread.submit(subprocess.Popen, ["sleep", "60"]).result()  # a part of the program has started it
        known = own_children()
        subprocess.run([sys.executable, "-c", LEAVE], check=True)
        adopted = own_children() - known
        assert len(adopted) == 3
        paths = [Path(f"/proc/{pid}/task/{pid}/children") for pid in adopted]
        below = [pid for path in paths for pid in path.read_text().split()]
        end_adopted(known)
        assert own_children() == known
        assert not any(Path(f"/proc/{pid}").exists() for pid in below)
        assert other.poll() is None
        other.kill()
        thread.submit(other.wait).result()


def test_what_has_ended_after_its_parent_is_reaped_and_known_children_are_left_to_their_owners() -> None:
    with adopting():
        known = own_children()
        owned = subprocess.Popen(["true"])
        os.waitid(os.P_PID, owned.pid, os.WEXITED | os.WNOWAIT)
        left = "import subprocess; subprocess.Popen(['sleep', '0.1'])"
        subprocess.run([sys.executable, "-c", left], check=True)

        def are_reaped() -> bool:
            reap_adopted(known | {owned.pid})
            return own_children() == known | {owned.pid}

        wait_until(are_reaped)
        assert owned.wait() == 0
