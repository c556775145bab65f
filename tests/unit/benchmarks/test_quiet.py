from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.quiet import LOOK_S, Usage, busy_ticks, share_between, wait_until_quiet

STAT = """cpu  90 90 90 900 90 90 90 90 0 0
cpu0 1 2 3 400 50 6 7 8 0 0
cpu1 10 20 30 4000 500 60 70 80 0 0
intr 1 2 3
"""


def test_idle_and_waiting_for_a_disk_are_not_busy() -> None:
    assert busy_ticks(STAT, [0]) == 1 + 2 + 3 + 6 + 7 + 8
    assert busy_ticks(STAT, [0, 1]) == 11 * 27


def test_what_we_used_is_not_of_others() -> None:
    passed = Usage(14.0, 4.0, 60.0).since(Usage(10.0, 1.0, 54.0))
    assert passed.others_share(num_cores=2) == pytest.approx((6.0 - 3.0) / (2 * 4.0))


def test_counts_that_lag_give_no_negative_share() -> None:
    assert Usage(1.0, 1.0, 0.9).others_share(num_cores=1) == 0.0


def test_the_wait_ends_with_the_first_quiet_look() -> None:
    shares = iter([0.9, 0.3, 0.05, 0.7])
    assert wait_until_quiet(lambda: next(shares), limit_s=60.0) == 0.05
    assert next(shares) == 0.7


def test_the_wait_has_an_end() -> None:
    looks: list[float] = []

    def look_once() -> float:
        looks.append(1.0)
        return 0.5

    assert wait_until_quiet(look_once, limit_s=3 * LOOK_S) == 0.5
    assert len(looks) == 4


def test_only_what_others_took_in_the_window_counts() -> None:
    busy_from_6 = [Usage(float(second), float(second), second + max(0.0, second - 6.0)) for second in range(13)]
    assert share_between(busy_from_6, 0.5, 5.5, num_cores=1) == 0.0
    assert share_between(busy_from_6, 6.0, 12.0, num_cores=1) == 1.0
    assert share_between(busy_from_6, -1.0, 99.0, num_cores=1) == 0.5


def test_the_cpu_of_a_live_child_is_our_own() -> None:
    before = Usage.of_tree([0])
    spin = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert Usage.of_tree([0]).since(before).own_s >= 0.25
        child.communicate(b"\n")
