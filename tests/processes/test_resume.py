"""Resume in `alternate` mode on the CPU: bit for bit the uninterrupted run, in parameters and replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.processes.conftest import FINISHED, TINY, LiveRun, kill_and_resume, last_checkpoint, replay_bytes

pytestmark = pytest.mark.mp
HALF = ("env.id=tests.toys:HalfSeen-v0", "algo.actor_input=actor", "algo.normalize_obs=true")
COMPARED = ("learner.safetensors", "collector-0.safetensors")


def saved_files(checkpoint: Path) -> dict[str, bytes]:
    files = {name: (checkpoint / name).read_bytes() for name in COMPARED}
    return files | {"replay": replay_bytes(checkpoint)}


@pytest.mark.promise("exact-resume")
def test_a_run_killed_and_resumed_is_bitwise_the_uninterrupted_one(start_run: Any, finished_run: LiveRun) -> None:
    """SAC with n-step rows and normalised observations."""
    again = kill_and_resume(start_run, finished_run, *FINISHED)
    assert saved_files(again) == saved_files(last_checkpoint(finished_run))


@pytest.mark.slow
@pytest.mark.parametrize("options", [("env.num_envs=2",), ("runner=double_buffer",), HALF])
def test_a_run_that_is_complete_and_goes_on_is_bitwise_the_longer_one(start_run: Any, options: tuple[str, ...]) -> None:
    """The last rows of a run were drawn as if its replay were about to recycle others, which it never did."""
    common = ("algo.n_step=3", "collect.mode=alternate", "eval.episodes=0", *options)
    longer = start_run(*common, "total_timesteps=500", "run_dir=longer")
    assert longer.finish()[0] == 0
    for command in (("train", *TINY, *common, "run_dir=shorter", "total_timesteps=400"), ("resume", "shorter")):
        words = ("total_timesteps=500",) if command[0] == "resume" else ()
        run = start_run(*words, command=command)
        assert run.finish()[0] == 0
    first, second = (longer.directory.parent / name / "checkpoints/step-000000000500" for name in ("longer", "shorter"))
    assert saved_files(first) == saved_files(second)


@pytest.mark.promise("exact-resume")
def test_an_environment_whose_state_is_not_exact_begins_new_episodes_and_the_run_says_so(start_run: Any) -> None:
    env = "env.id=tests.processes.aliased_env:Aliased-v0"
    code, out, err = start_run(env, "total_timesteps=300").finish()
    assert (code, err) == (0, "")
    why = "Aliased.log is also Aliased.kept"
    assert f"a resume from this checkpoint is not bitwise, because {why}; episodes will begin again" in out
    code, out, _ = start_run("total_timesteps=400", command=("resume", "run")).finish()
    assert code == 0
    assert f"the continuation is not bitwise: {why}; episodes begin again" in out


@pytest.mark.slow
def test_without_saved_replay_rows_a_resumed_run_refills_first_and_owes_no_updates(start_run: Any) -> None:
    assert start_run("checkpoint.replay=false", "total_timesteps=300").finish()[0] == 0
    resumed = start_run("total_timesteps=600", command=("resume", "run"))
    assert resumed.finish()[0] == 0
    assert resumed.summary()["updates"] == 200 + (600 - 300 - 100)
    assert resumed.summary()["from_env_step"] == 300


@pytest.mark.promise("no-broken-checkpoint")
def test_resume_passes_over_a_damaged_checkpoint_for_an_older_one(start_run: Any, finished_copy: Path) -> None:
    newest = finished_copy / "checkpoints" / "step-000000001100" / "learner.safetensors"
    damaged = bytearray(newest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    newest.write_bytes(damaged)
    code, out, _ = start_run(command=("resume", "run")).finish()
    assert code == 0
    assert "learner.safetensors" in out
    assert "step-000000001000" in out
