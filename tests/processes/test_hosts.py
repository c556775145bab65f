"""Two hosts under torchrun, on the CPU: they train one policy, fail together, and go on from a common checkpoint."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offpolicy.distributed.host_info import HostInfo
from offpolicy.distributed.rendezvous import Proposal, agree
from offpolicy.errors import HangError
from tests.processes import network_hosts
from tests.processes.conftest import replay_bytes
from tests.processes.network_hosts import Host, ip, kill, wait_until_gone

pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.timeout(300)]

Pair = tuple[Host, Host]
START_S = 90.0  # torchrun, the agreement and the first update, on a busy machine
SAVING = ("total_timesteps=800", "checkpoint.every=200")
ENDLESS = ("total_timesteps=100000000", "replay.capacity=100000")


@pytest.fixture
def two_hosts(traces: Any, tmp_path: Path) -> Iterator[Pair]:
    """Two empty hosts joined by a cable; at the end, whatever runs on them is killed."""
    if not network_hosts.are_possible():
        pytest.skip("network namespaces need root, ip, ss and unshare")
    first, second = pair = (Host(0, tmp_path, traces.environ), Host(1, tmp_path, traces.environ))
    with contextlib.ExitStack() as cleanup:
        for host in pair:
            host.create()
            cleanup.callback(host.remove)
        ip("link", "add", *first.cable_end(), "type", "veth", "peer", *second.cable_end())
        for host in pair:
            host.join_cable()
        yield pair


def launch(pair: Pair, *overrides: str, max_restarts: int = 0) -> None:
    for host in pair:
        host.launch(*overrides, max_restarts=max_restarts)


def wait_for_updates(pair: Pair) -> None:
    for host in pair:
        host.run.wait_for_updates(START_S)


def wait_until(host: Host, condition: Callable[[], bool]) -> None:
    host.run.wait_until(condition, START_S)


def finish(pair: Pair, timeout_s: float = 120.0) -> list[int]:
    return [host.finish(timeout_s) for host in pair]


def assert_complete(pair: Pair, env_steps: int) -> None:
    """Both hosts came to the end together and saved it."""
    summaries = [host.run.summary() for host in pair]
    assert [summary["status"] for summary in summaries] == ["completed"] * 2
    assert [summary["env_steps"] for summary in summaries] == [env_steps] * 2
    assert summaries[0]["updates"] == summaries[1]["updates"] > 0
    assert [host.run.checkpoints()[-1] for host in pair] == [f"step-{env_steps:012}"] * 2


def test_two_hosts_train_one_policy_and_each_keeps_its_own_replay(two_hosts: Pair) -> None:
    launch(two_hosts, "total_timesteps=400")
    assert finish(two_hosts) == [0, 0], two_hosts[1].err()
    assert_complete(two_hosts, 400)
    first, second = two_hosts
    assert "host 0 of 2" in first.out()
    assert "host 1 of 2" in second.out()
    parts = [host.run_dir / "checkpoints" / "step-000000000400" for host in two_hosts]
    assert second.run_dir == second.directory / "run" / "host-1"
    assert [(part / "learner.safetensors").exists() for part in parts] == [True, False]
    rows = [replay_bytes(part) for part in parts]
    assert rows[0] != rows[1], "both hosts collected the same transitions"


def test_losing_a_host_ends_the_other_and_the_same_commands_go_on_from_the_common_checkpoint(two_hosts: Pair) -> None:
    first, second = two_hosts
    launch(two_hosts, *SAVING)
    wait_until(first, lambda: len(first.run.checkpoints()) == 2)
    second.kill()
    assert first.finish(60) != 0
    assert "lost rank 1" in first.err()
    assert first.pids() == []
    common, newest = first.run.checkpoints()
    shutil.rmtree(first.run_dir / "checkpoints" / newest)  # as if the end had come between the commits of the two hosts
    launch(two_hosts, *SAVING)
    assert finish(two_hosts) == [0, 0]
    assert_complete(two_hosts, 800)
    words = f"resuming at env step {int(common.removeprefix('step-'))}\n"
    assert [host.out().count(words) for host in two_hosts] == [1, 1]


def test_a_killed_process_ends_the_run_with_70_and_torchrun_begins_it_again(two_hosts: Pair) -> None:
    launch(two_hosts, "total_timesteps=2000", "checkpoint.every=200", max_restarts=1)
    wait_until(two_hosts[1], lambda: len(two_hosts[1].run.checkpoints()) == 2)
    kill(two_hosts[0].run.pid_of("collector"))
    assert finish(two_hosts) == [0, 0]
    assert_complete(two_hosts, 2000)
    assert any("exitcode: 70" in host.err() for host in two_hosts)
    assert ["resuming at env step" in host.out() for host in two_hosts] == [True, True]


def test_everything_on_a_host_dies_with_its_torchrun(two_hosts: Pair) -> None:
    first, second = two_hosts
    launch(two_hosts, *ENDLESS)
    wait_for_updates(two_hosts)
    orphans = second.own_pids()
    assert len(orphans) == 4  # supervisor, fork server, learner, collector
    kill(second.run.process.pid)
    assert wait_until_gone(orphans, 2.0) == []
    assert first.finish(60) != 0
    assert "lost rank 1" in first.err()


def test_a_signal_to_one_host_stops_both_at_the_same_step_and_saves(two_hosts: Pair) -> None:
    launch(two_hosts, *ENDLESS)
    wait_for_updates(two_hosts)
    os.kill(two_hosts[1].supervisor(), signal.SIGTERM)
    assert 0 not in finish(two_hosts, 60)
    [saved], [saved_too] = (host.run.checkpoints() for host in two_hosts)
    assert saved == saved_too
    env_steps = f"{int(saved.removeprefix('step-')):,}"
    summaries = [host.run.summary() for host in two_hosts]
    assert [(summary["status"], summary["exit_code"]) for summary in summaries] == [("interrupted", 143)] * 2
    assert [summary["reason"] for summary in summaries] == [
        f"the host of rank 1 asked to stop; checkpoint saved at env step {env_steps}",
        f"stopped by a signal; checkpoint saved at env step {env_steps}",
    ]
    assert summaries[0]["updates"] == summaries[1]["updates"]


def test_a_cut_cable_ends_both_hosts_in_time_and_the_run_goes_on_once_it_is_mended(two_hosts: Pair) -> None:
    first, second = two_hosts
    options = ("checkpoint.every=200", "runner.timeout_s=8")
    launch(two_hosts, *ENDLESS, *options)
    wait_until(first, lambda: first.run.checkpoints() != [])
    own = [pid for host in two_hosts for pid in host.own_pids()]
    second.set_cable("down")
    assert wait_until_gone(own, 8 + 10) == []
    second.set_cable("up")
    assert 0 not in finish(two_hosts)  # now: the torchrun of the host that was cut off waits for the other's store
    assert "lost rank 1" in first.err()
    assert "lost " in second.err()
    saved = int(first.run.checkpoints()[-1].removeprefix("step-"))
    goal = 2 * (saved // 2 + 50)  # the collectors, one on each host, do the same number of steps
    launch(two_hosts, *options, f"total_timesteps={goal}", "replay.capacity=100000")
    assert finish(two_hosts) == [0, 0]
    assert_complete(two_hosts, goal)
    assert all(f"resuming at env step {saved:,}" in host.out() for host in two_hosts)


def test_hosts_with_different_configurations_refuse_to_train(two_hosts: Pair) -> None:
    first, second = two_hosts
    first.launch()
    second.launch("seed=2")
    assert 0 not in finish(two_hosts)
    for host in two_hosts:
        assert "seed: host 0 has 1, host 1 2" in host.err()
        assert not host.run_dir.exists()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_a_host_that_never_comes_ends_the_wait_for_it() -> None:
    port = free_port()
    host = HostInfo(index=0, num_hosts=2, store_port=port, job="job")
    begun_s = time.monotonic()
    with pytest.raises(HangError) as caught:
        agree(host, Proposal({"seed": 1}, "run", []), timeout_s=6)  # a loaded machine imports torch for two seconds
    assert time.monotonic() - begun_s < 6 + 10
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "found hosts [0] only" in str(caught.value)
