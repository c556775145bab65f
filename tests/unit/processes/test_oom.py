from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.machine import MemoryLimit
from offpolicy.processes import oom
from offpolicy.processes.oom import RECENT_S, OomWatch, be_killed_first


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with one cgroup of 200 MiB inside of one without a limit."""
    job = tmp_path / "pod" / "job"
    job.mkdir(parents=True)
    monkeypatch.setattr(oom, "VMSTAT", tmp_path / "vmstat")
    monkeypatch.setattr(oom, "memory_cgroups", lambda: [job, job.parent])
    monkeypatch.setattr(oom, "memory_limits", lambda: [MemoryLimit(200 * 2**20, 150 * 2**20, job)])
    (tmp_path / "vmstat").write_text("nr_free 1\noom_kill 7\n")
    (job / "memory.events").write_text("max 3\noom 2\noom_kill 1\noom_group_kill 0\n")


def test_without_a_kill_there_is_no_cause() -> None:
    assert OomWatch(Clock()).cause() is None


def test_a_kill_in_a_cgroup_names_its_limit_once(tmp_path: Path) -> None:
    watch = OomWatch(Clock())
    job = tmp_path / "pod" / "job"
    (job / "memory.events").write_text("max 9\noom 3\noom_kill 2\noom_group_kill 0\n")
    cause = f"was killed by the kernel: out of memory; the limit of {job} is 200 MiB, of which 150 MiB are used now"
    assert [watch.cause(), watch.cause()] == [cause, None]


def test_a_kill_counted_by_version_1_is_seen(tmp_path: Path) -> None:
    control = tmp_path / "pod" / "job" / "memory.oom_control"
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    watch = OomWatch(Clock())
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert "200 MiB" in str(watch.cause())


def test_a_kill_outside_of_every_cgroup_is_the_machines(tmp_path: Path) -> None:
    watch = OomWatch(Clock())
    (tmp_path / "vmstat").write_text("nr_free 1\noom_kill 8\n")
    assert watch.cause() == "was killed by the kernel: the machine ran out of memory"


def test_every_process_of_a_run_is_likelier_to_be_killed_than_the_supervisor() -> None:
    assert set(oom.KILL_FIRST) == {"collector", "evaluator", "learner"}
    assert 0 < oom.KILL_FIRST["learner"] < oom.KILL_FIRST["collector"]


def test_a_kill_of_another_process_is_not_the_cause_of_what_somebody_kills_later(tmp_path: Path) -> None:
    clock = Clock()
    watch = OomWatch(clock)
    (tmp_path / "vmstat").write_text("oom_kill 8\n")
    watch.look()
    clock.now_s += RECENT_S + 1.0
    assert watch.cause() is None


def test_of_several_processes_killed_at_once_each_has_the_cause(tmp_path: Path) -> None:
    watch = OomWatch(Clock())
    (tmp_path / "vmstat").write_text("oom_kill 9\n")
    (tmp_path / "pod" / "job" / "memory.events").write_text("oom_kill 3\n")
    causes = [watch.cause() for _ in range(3)]
    assert causes[0] == causes[1]
    assert "200 MiB" in str(causes[0])
    assert causes[2] is None


@pytest.mark.parametrize(
    ("role", "before", "after"),
    [
        ("collector", "0", "500"),
        ("learner", "0", "200"),
        ("learner", "-998", "200"),
        ("collector", "1000", "1000"),  # as of a pod without guaranteed memory: the supervisor has that score, too
    ],
)
def test_a_process_of_the_run_is_never_less_likely_to_be_killed_than_its_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, before: str, after: str
) -> None:
    score = tmp_path / "oom_score_adj"
    score.write_text(f"{before}\n")
    monkeypatch.setattr(oom, "SCORE", score)
    be_killed_first(role)
    assert score.read_text() == after
