"""`collect.process=learner`: the learner's process steps the environments, with the results of two processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Traces
from tests.processes.conftest import TINY, LiveRun, kill_and_resume, last_checkpoint, replay_bytes

pytestmark = pytest.mark.mp
BATCH = (
    *("env.batch=offpolicy.envs.toy_batch:PointMasses", "env.id=", "env.kwargs.limit=7", "env.num_envs=16"),
    *("algo.utd=0.0625", "total_timesteps=800"),
)
FLASHSAC = ("algo=flashsac", "algo.actor_width=8", "algo.critic_width=8", "algo.num_bins=11")
COMMON = ("collect.mode=alternate", "device=cpu", "eval.episodes=0", "algo.learning_starts=100")
CASES = {
    "sac": (*BATCH, "algo.n_step=3", "algo.normalize_obs=true"),
    "td3": (*BATCH, "algo=td3", "algo.policy_delay=3"),
    "flashsac": (*BATCH, *FLASHSAC),
    "double_buffer": ("runner=double_buffer", "env.num_envs=2", "total_timesteps=400"),
    "single": ("env.num_envs=2", "total_timesteps=400", "checkpoint.every=150"),
}
IN_LEARNER = "collect.process=learner"


def content(run: LiveRun) -> dict[str, bytes]:
    checkpoint = last_checkpoint(run)
    names = ("learner.safetensors", "collector-0.safetensors", "rank-0.json")
    return {name: (checkpoint / name).read_bytes() for name in names} | {"replay": replay_bytes(checkpoint)}


def finished(start_run: Any, *words: str) -> LiveRun:
    has_widths = "algo=flashsac" in words
    tiny = [word for word in TINY if not (has_widths and word.startswith("algo.hidden_dims"))]
    run: LiveRun = start_run(*words, command=("train", *tiny))
    code, _, err = run.finish()
    assert code == 0, err
    return run


@pytest.mark.parametrize(
    "case", [case if case in ("sac", "single") else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_one_process_learns_what_two_in_turns_learn_bit_for_bit(start_run: Any, traces: Traces, case: str) -> None:
    one, two = (
        finished(start_run, *COMMON, *CASES[case], f"run_dir={process}", f"collect.process={process}")
        for process in ("learner", "own")
    )
    assert content(one) == content(two)
    traces.assert_none()


TENSORS = ("env.kwargs.device=cpu", "replay.source=resident", "env.kwargs.limit=1000")


@pytest.mark.parametrize(
    "words", [("algo.n_step=3", "algo.normalize_obs=true"), pytest.param(("algo=td3",), marks=pytest.mark.slow)]
)
def test_tensors_that_never_leave_the_device_learn_the_same_bit_for_bit(start_run: Any, words: tuple[str, ...]) -> None:
    """Until an episode ends: then the ring on the device has the same transitions at other places."""
    common = (*COMMON, *BATCH, *TENSORS, *words)
    one, two = (
        last_checkpoint(finished(start_run, *common, f"run_dir={process}", f"collect.process={process}"))
        for process in ("learner", "own")
    )
    assert (one / "learner.safetensors").read_bytes() == (two / "learner.safetensors").read_bytes()


@pytest.mark.parametrize("words", [("algo.n_step=3", "algo.normalize_obs=true"), FLASHSAC])
def test_tensors_go_on_bit_for_bit_after_a_stop(start_run: Any, words: tuple[str, ...]) -> None:
    """Episodes of 7 steps; the second half continues from a checkpoint with open rows."""
    saved = "env.batch=tests.processes.saved_masses:SavedMasses"
    common = (*COMMON, *BATCH, *words, IN_LEARNER, "env.kwargs.device=cpu", saved)
    whole = last_checkpoint(finished(start_run, *common, "run_dir=whole", "total_timesteps=1200"))
    half = finished(start_run, *common, "run_dir=half")
    code, out, err = start_run("total_timesteps=1200", command=("resume", "half")).finish()
    assert (code, err, "not bitwise" in out) == (0, "", False)
    again = last_checkpoint(half)
    for name in ("learner.safetensors", "collector-0.safetensors"):
        assert (again / name).read_bytes() == (whole / name).read_bytes(), name
    lines = [(directory / "episodes.jsonl").read_text() for directory in (whole.parent.parent, half.directory)]
    assert lines[0] == lines[1] != ""


def test_a_bad_row_on_the_device_is_dropped_and_counted(start_run: Any) -> None:
    bad = (*BATCH, IN_LEARNER, "device=cpu", "env.kwargs.device=cpu", "eval.episodes=0", "total_timesteps=6000")
    words = (*bad, "env.batch=tests.processes.saved_masses:Breaking")
    run = start_run(*words, "env.max_bad_rows=1000000")
    code, out, err = run.finish()
    assert (code, err) == (0, "")
    assert 0.1 < run.records()[-1]["env/distance"] < 3.0  # the mean of what the batch logs, where it is a number
    assert "NaN or Inf in a transition of environment 3 before env step" in out
    code, _, err = start_run(*words, "run_dir=refused").finish()
    assert code == 65
    assert "NaN or Inf in a transition of environment 3 before env step" in err


def test_a_bad_row_of_a_batch_on_the_host_is_dropped_and_counted(start_run: Any) -> None:
    """One of 10,000 may be. This batch can only be reset whole."""
    words = (*BATCH, "eval.episodes=0", "env.batch=tests.processes.saved_masses:BreakingTogether")
    code, out, err = start_run(*words, "total_timesteps=10000", "algo.utd=0.001").finish()
    assert (code, err) == (0, "")
    assert "3 at env step 144, episode step 2, seed 1; dropped, and all 16 environments reset, 1 of" in out
    code, _, err = start_run(*words, "total_timesteps=9999", "algo.utd=0.001", "run_dir=refused").finish()
    assert code == 65
    assert "NaN or Inf in next_obs, reward of environment 3 at env step 144" in err


def test_the_account_of_one_process_closes_and_the_collectors_phases_divide_collect(start_run: Any) -> None:
    run = finished(start_run, *BATCH, IN_LEARNER, "device=cpu", "total_timesteps=4000")
    timing = run.summary()["timing"]
    learner, collector = timing["learner"]["phases_s"], timing["collector"]["phases_s"]
    assert learner["collect"] > 0
    assert learner["collector_wait"] < 0.05 * learner["collect"]
    inside = sum(collector[name] for name in ("weight_apply", "action_select", "env_step", "replay_write"))
    assert 0.8 * learner["collect"] < inside + timing["collector"]["other_s"]
    for side in (timing["learner"], timing["collector"]):
        assert sum(side["phases_s"].values()) + side["other_s"] == pytest.approx(side["wall_s"], abs=1e-6)
        assert side["other_s"] < 0.02 * side["wall_s"]
    assert run.records()[-1]["timing/learner_collect_ms"] > 0


def test_a_killed_run_of_one_process_goes_on_bit_for_bit(start_run: Any) -> None:
    words = (IN_LEARNER, "device=cpu", "total_timesteps=1100", "checkpoint.every=500", "algo.n_step=3")
    whole = finished(start_run, *words, "run_dir=whole")
    again, expected = kill_and_resume(start_run, whole, *words), last_checkpoint(whole)
    assert (again / "learner.safetensors").read_bytes() == (expected / "learner.safetensors").read_bytes()


def test_a_batch_without_state_begins_new_episodes_after_a_resume_and_the_run_says_so(start_run: Any) -> None:
    finished(start_run, *BATCH, IN_LEARNER, "device=cpu")
    code, out, _ = start_run("total_timesteps=1200", command=("resume", "run")).finish()
    assert code == 0
    assert "the continuation is not bitwise: PointMasses has no get_state and set_state; episodes begin again" in out


@pytest.mark.parametrize(
    ("fail", "code", "words"),
    [
        ("step_raise", 1, "step"),
        pytest.param("nan_obs", 65, "NaN", marks=pytest.mark.slow),
        pytest.param("hang", 70, "env.step_timeout_s", marks=pytest.mark.slow),
    ],
)
def test_a_failing_environment_ends_the_run_with_its_cause_and_what_was_learnt(
    start_run: Any, traces: Traces, fail: str, code: int, words: str
) -> None:
    faulty = ("env.id=tests.toys:Faulty-v0", f"env.kwargs.fail={fail}", "env.kwargs.at=250", "env.step_timeout_s=3")
    run: LiveRun = start_run(*faulty, IN_LEARNER)
    got, _, err = run.finish()
    assert got == code, err
    assert words in err
    assert err.strip().splitlines()[-1].startswith("offpolicy: learner 0 (pid ")
    assert bool(run.checkpoints()) == (fail != "hang")
    traces.assert_none()


def test_what_one_thread_cannot_do_is_refused_by_name(start_run: Any) -> None:
    words = ("collect.mode=overlap", "collect.num_collectors=2", IN_LEARNER)
    code, _, err = start_run(*words).finish()
    assert code == 2
    assert "collect.mode: got overlap, allowed alternate with collect.process=learner" in err
    assert "collect.num_collectors: got 2, allowed 1 with collect.process=learner" in err
    code, _, err = start_run(IN_LEARNER, command=("train", "algo=appo", "run_dir=b")).finish()
    assert code == 2
    assert "collect.process: got learner, allowed own with algo=appo" in err
