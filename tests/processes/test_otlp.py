"""A run that sends its records to a collector of OpenTelemetry, and one whose collector never answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.otlp_receiver import Receiver
from tests.processes.conftest import StartRun

pytestmark = [pytest.mark.mp, pytest.mark.slow, pytest.mark.timeout(300)]
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

WATCH = """
import os, pathlib, sys, threading

def watch(env):
    found = [name for name in sys.modules if name.startswith("opentelemetry")]
    found += [thread.name for thread in threading.enumerate() if thread.name == "otlp"]
    with open("watched.txt", "a") as file:
        file.write(f"{os.getpid()} {found}\\n")
    return env
"""


def test_the_records_of_a_run_arrive_and_its_processes_know_nothing_of_it(start_run: StartRun, tmp_path: Path) -> None:
    (tmp_path / "watch.py").write_text(WATCH)
    receiver = Receiver()
    try:
        run = start_run(
            f"log.otlp_endpoint={receiver.address}",
            *("env.wrappers=[watch:watch]", "eval.episodes=1", "log.ranks=all"),
            *("runner=multi_gpu", "runner.world_size=2", "device=cpu"),
        )
        code, _, err = run.finish_while_alive()
        points = receiver.points()
    finally:
        receiver.close()
    assert (code, err) == (0, "")
    last = run.records()[-1]
    assert [value for name, _, value, _ in points if name == "offpolicy_env_steps"][-1] == last["env_steps"]
    ranks = {labels["rank"] for name, labels, _, _ in points if name == "offpolicy_rank_each_train_ms"}
    assert ranks == {"0", "1"}
    assert {labels["run"] for _, labels, _, _ in points} == {str(run.directory.relative_to(tmp_path))}
    watched = [line.split(" ", 1) for line in (tmp_path / "watched.txt").read_text().splitlines()]
    assert {found for _, found in watched} == {"[]"}
    assert len({pid for pid, _ in watched}) >= 3  # the probe, the collector, the learner's evaluation
