"""Collectors on remote hosts, as actors of a Ray cluster that the run starts on this machine."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.conftest import RUN_ID_VARIABLE, Traces
from tests.processes.conftest import ENDLESS, TINY, LiveRun, StartRun, kill_and_resume, last_checkpoint, replay_bytes
from tests.processes.test_appo import TINY_APPO
from tests.processes.test_restarts import wait_for_restart

pytest.importorskip("ray")
pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.timeout(240)]
REMOTE = ("collect.remote_hosts=1", "runner.start_timeout_s=240")
TWO = ("collect.remote_hosts=2", "runner.start_timeout_s=240", "collect.mode=overlap", "algo.utd=0.5")
TURNS = ("collect.mode=alternate", "device=cpu", "env.num_envs=2", "eval.episodes=0", "checkpoint.every=200")
COMMANDS = {
    "sac": (("train", *TINY), ("algo.n_step=3", "algo.normalize_obs=true", "collect.num_collectors=2")),
    "appo": (TINY_APPO, ()),
}
PATIENCE_S = 120.0
LATE_MS = 40.0
LOOPBACK = f"{0:016X}FFFF00000100007F"  # 127.0.0.1 as the kernel writes it, in an address of IPv6
LEFT_S = 65.0  # a killed cluster's agents try for a minute to tell it what has happened


def content(checkpoint: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in checkpoint.iterdir() if not path.name.startswith("replay-")}
    del files["MANIFEST.json"]
    rings = [name for name in files if name.startswith("ahead-")]
    return files | {f"rows {name}": replay_bytes(checkpoint, int(name[6:-4])) for name in rings}


def pids_of(run: LiveRun, beginning: str) -> list[int]:
    """The processes of a run whose command line begins so, or whose program is called so."""
    mark, found = f"{RUN_ID_VARIABLE}={run.run_id}".encode(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{name}/cmdline").read_bytes().decode().split("\0")[0]
            if mark in Path(f"/proc/{name}/environ").read_bytes() and (
                command.startswith(beginning) or command.endswith(f"/{beginning}")
            ):
                found.append(int(name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("algo", COMMANDS)
def test_in_turns_one_remote_host_makes_the_local_run_bit_for_bit_also_after_a_kill(
    start_run: StartRun, traces: Traces, algo: str
) -> None:
    command, options = COMMANDS[algo]
    here = start_run(*TURNS, *options, "run_dir=here", command=command)
    assert here.finish(PATIENCE_S)[0] == 0
    there = start_run(*TURNS, *options, *REMOTE, "run_dir=there", command=command)
    code, _, err = there.finish(PATIENCE_S)
    assert (code, err) == (0, "")
    assert content(last_checkpoint(there)) == content(last_checkpoint(here))
    again = kill_and_resume(start_run, there, *TURNS, *options, *REMOTE, command=command)
    assert content(again) == content(last_checkpoint(here))
    traces.assert_none(LEFT_S)


def started(start_run: StartRun, *overrides: str) -> LiveRun:
    run = start_run(*TWO, *ENDLESS, *overrides)
    run.wait_for_updates(PATIENCE_S)
    return run


def steps_of(run: LiveRun) -> int:
    return int(run.records()[-1]["env_steps"])


def test_a_run_goes_on_without_a_killed_collector_and_with_the_one_in_its_place(
    start_run: StartRun, traces: Traces
) -> None:
    run = started(start_run)
    (killed, other), before = pids_of(run, "ray::Actor"), steps_of(run)
    os.kill(killed, signal.SIGKILL)
    run.wait_until(lambda: steps_of(run) > before + 500, PATIENCE_S)
    run.wait_until(lambda: len({*pids_of(run, "ray::Actor")} - {killed, other}) == 1, PATIENCE_S)
    before = steps_of(run)
    run.wait_until(lambda: steps_of(run) > before + 1000, PATIENCE_S)
    run.signal(signal.SIGINT)
    code, out, _ = run.finish(PATIENCE_S)
    assert code == 130
    assert (out.count(" is lost: "), out.count(" goes on, on host ")) == (1, 1)
    summary = run.summary()
    assert abs(0.5 * (summary["env_steps"] - 100) - summary["updates"]) < 16
    traces.assert_none()


@pytest.mark.alone
def test_a_late_part_of_a_call_is_late_in_its_account_and_in_no_other(start_run: StartRun, tmp_path: Path) -> None:
    late, parts, records = tmp_path / "late", ("remote_busy", "serialise", "copy"), dict[str, list[dict[str, Any]]]()
    late.write_text("none 0")
    run = start_run(
        *(*REMOTE, *ENDLESS, "collect.mode=alternate", "algo.utd=1", "log.every_s=0.5"),
        *("env.id=tests.processes.late_link:LatePoint-v0", "eval.episodes=0"),
        cli="tests.processes.delayed_cli",
        LATE_FILE=str(late),
    )
    run.wait_for_updates(PATIENCE_S)
    for part in ("none", *parts):
        late.write_text(f"{part} {LATE_MS}")
        first = len(run.records()) + 1  # the record after this one has both
        run.wait_until(lambda first=first: len(run.records()) >= first + 4, PATIENCE_S)  # type: ignore[misc]
        records[part] = run.records()[first : first + 4]
    run.signal(signal.SIGINT)
    assert run.finish(PATIENCE_S)[0] == 130
    usual, *each = ([median(r[f"link/{name}_ms"] for r in records[late]) for name in parts] for late in records)
    for number, ms in enumerate(each):
        more = [after - before for after, before in zip(ms, usual, strict=True)]
        assert 0.95 * LATE_MS <= more.pop(number) <= 1.10 * LATE_MS
        assert max(map(abs, more)) <= 0.05 * LATE_MS


@pytest.mark.parametrize(("killed", "code"), [("raylet", 1), ("op-link-0", 130)])
def test_a_run_saves_without_its_cluster_and_goes_on_with_another_link(
    start_run: StartRun, traces: Traces, monkeypatch: pytest.MonkeyPatch, killed: str, code: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setenv("TMPDIR", directory)
        run = started(start_run)
        (pid, *_) = [run.pid_of("link")] if killed == "op-link-0" else pids_of(run, killed)
        os.kill(pid, signal.SIGKILL)
        if code == 130:
            wait_for_restart(run, 1, PATIENCE_S)
            run.signal(signal.SIGINT)
        assert run.finish(PATIENCE_S)[0] == code
        assert run.summary()["learner_restarts"] == (code == 130)
        assert int(run.checkpoints()[-1].removeprefix("step-")) == run.summary()["env_steps"]
        traces.assert_none(grace_s=30.0)
        assert not list(Path(directory).glob("offpolicy-*"))


def listening(pids: list[int]) -> set[str]:
    """The addresses, as the kernel writes them, at which these processes listen."""
    nodes = {
        os.readlink(path)[8:-1]
        for pid in pids
        for path in Path(f"/proc/{pid}/fd").iterdir()
        if os.readlink(path).startswith("socket:")
    }
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {line[1].partition(":")[0] for line in lines if line[3] == "0A" and line[9] in nodes}


def test_a_cluster_of_this_machine_is_closed_to_others_and_leaves_its_logs_where_its_head_is_killed(
    start_run: StartRun, traces: Traces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run = started(start_run)
    servers = [pid for name in ("gcs_server", "raylet", "ray::Actor") for pid in pids_of(run, name)]
    assert len(servers) == 4
    assert listening(servers) == {LOOPBACK}
    (head,) = pids_of(run, "gcs_server")
    environ = Path(f"/proc/{head}/environ").read_bytes().decode().split("\0")
    (token,) = [Path(line.partition("=")[2]) for line in environ if line.startswith("RAY_AUTH_TOKEN_PATH=")]
    assert token.parent.stat().st_mode & 0o777 == 0o700
    os.kill(head, signal.SIGKILL)
    assert run.finish(PATIENCE_S)[0] == 1
    assert run.checkpoints() != []
    assert (run.directory / "ray/gcs_server.out").exists()
    assert not token.parent.exists()
    assert list((tmp_path / "home").iterdir()) == []
    traces.assert_none()
