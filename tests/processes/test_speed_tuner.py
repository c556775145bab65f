"""Real runs that choose their threads and their mode while they train."""

from __future__ import annotations

import os
import re

import pytest

from tests.processes.conftest import StartRun

pytestmark = [pytest.mark.mp, pytest.mark.slow]
AUTO = ("threads.learner=auto", "total_timesteps=2200")  # 4 settings x 5 blocks of 42 iterations each
NEEDS_TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is nothing to choose on one core")


@NEEDS_TWO_CORES
def test_a_run_says_which_threads_and_mode_were_fastest_and_records_them(start_run: StartRun) -> None:
    run = start_run(*AUTO, "collect.mode=auto")
    code, out, err = run.finish(120)
    assert (code, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.startswith("fastest: ")]
    summary = run.summary()
    threads, mode = summary["threads"]["learner"], summary["mode"]
    won = rf"fastest: {threads} thread{'s' * (threads > 1)}, {mode} \(ms per update with "
    assert re.match(won, line), line
    assert all(
        f"{number}, {mode}: " in line for number in ("1 thread", "2 threads") for mode in ("alternate", "overlap")
    )
    assert run.records()[-1]["perf/learner_threads"] == threads


@pytest.mark.alone
@pytest.mark.timeout(600)
@NEEDS_TWO_CORES
@pytest.mark.parametrize("mode", ["alternate", "overlap"])
def test_auto_keeps_the_number_of_threads_that_is_fastest(start_run: StartRun, mode: str) -> None:
    """The rates are those of the time after the trial, so that what the trial costs is not part of them."""
    words = ("env.id=Pendulum-v1", "algo.hidden_dims=[256,256]", "algo.batch_size=256", "total_timesteps=2200")
    words = (*words, "algo.learning_starts=200", "eval.episodes=0", "log.every_s=1", f"collect.mode={mode}")
    late: dict[str, float] = {}
    for threads in ("1", "2", "auto"):
        run = start_run(*words, f"threads.learner={threads}", f"run_dir=threads-{threads}")
        assert run.finish(250)[0] == 0
        records = [record for record in run.records() if record["env_steps"] > 1000 and "perf/steps_per_sec" in record]
        late[threads] = sorted(record["perf/steps_per_sec"] for record in records)[len(records) // 2]
    assert late["auto"] >= 0.95 * max(late.values()), late
