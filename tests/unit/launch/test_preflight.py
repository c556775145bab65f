"""What is refused before a training process exists: devices, environments, teachers, changed configurations."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offpolicy.checkpoint.content import fingerprint
from offpolicy.config.overrides import load_config
from offpolicy.config.run_files import write_config
from offpolicy.config.schema import RunConfig
from offpolicy.distributed.host_info import HostInfo
from offpolicy.errors import ConfigError
from offpolicy.launch import preflight
from offpolicy.launch.hosts import LaunchPlan
from offpolicy.launch.preflight import find_origin
from offpolicy.processes.fork_server import ChildTimeout
from offpolicy.types import SpaceSpec

STUDENT = load_config(["algo=hora", "env=hand_rotation", "stage=adapt", "teacher=teacher"])
TEACHER = load_config(["algo=hora", "env=hand_rotation"])
HISTORY = SpaceSpec(
    1066, 16, (-1.0,) * 16, (1.0,) * 16, ("obs", "privileged", "proprio_hist"), ((96,), (10,), (30, 32))
)
ALONE = HostInfo()
SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6)


def config(**tree: object) -> RunConfig:
    return RunConfig.from_mapping(tree)


def appo(**tree: object) -> RunConfig:
    return config(algo={"name": "appo"}, runner={"name": "appo"}, **tree)


def plan(tmp_path: Path, host: HostInfo = ALONE, start_step: int = 0) -> LaunchPlan:
    cfg = dataclasses.replace(STUDENT, teacher=str(tmp_path / "teacher"), run_dir=str(tmp_path / "student"))
    return LaunchPlan(cfg, host, start_step)


def teacher_at(path: Path, obs: int) -> None:
    path.mkdir()
    spec = dataclasses.replace(HISTORY, obs_keys=("obs", "privileged"), obs_shapes=((obs,), (10,)))
    write_config(path, TEACHER, spec)


def refusal_of_ray(address: str) -> str:
    with pytest.raises(ConfigError) as caught:
        preflight.check_ray(config(collect={"remote_hosts": 2}, runner={"ray": address}))
    return str(caught.value)


def test_a_cluster_that_this_host_cannot_use_is_refused_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: name)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert "got 192.0.2.7:6379 without RAY_AUTH_MODE=token, allowed 127.0.0.1:6379" in refusal_of_ray("192.0.2.7:6379")
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        monkeypatch.setattr(preflight, "runs_program", lambda name: False)
        assert f"got {address}, allowed a cluster that this host has joined; type here" in refusal_of_ray(address)
    assert f"got {address}, where nothing answers" in refusal_of_ray(address)
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: None)
    assert "got 2, allowed 0 without Ray; type pip install 'offpolicy[ray]'" in refusal_of_ray("local")


def test_only_the_first_host_looks_for_the_teacher(tmp_path: Path) -> None:
    other = dataclasses.replace(ALONE, index=1, num_hosts=2)
    assert find_origin(plan(tmp_path, other), HISTORY)[1] is None
    with pytest.raises(ConfigError, match="got .*teacher', allowed a run's directory"):
        find_origin(plan(tmp_path), HISTORY)


def test_a_teacher_with_other_groups_or_actions_is_refused(tmp_path: Path) -> None:
    """The trunk acts in [-1, 1], and nothing of stage 2 changes it."""
    teacher_at(tmp_path / "teacher", obs=64)
    wider = dataclasses.replace(HISTORY, action_high=tuple(2.0 * bound for bound in HISTORY.action_high))
    with pytest.raises(ConfigError) as caught:
        find_origin(plan(tmp_path), wider)
    group, action = caught.value.problems
    assert group == f"env.id: group obs was (64,), is (96,); {tmp_path / 'teacher'} allows the same"
    assert action.startswith("env.id: action_high was (1.0, 1.0")


@pytest.mark.promise("refusals")
def test_an_action_space_that_an_algorithm_does_not_take_is_refused_with_those_that_do() -> None:
    discrete = SpaceSpec(4, 1, (0.0,), (1.0,), num_actions=2)
    several = SpaceSpec(4, 2, (0.0, 0.0), (1.0, 2.0), nvec=(2, 3))
    td3 = RunConfig.from_mapping({"algo": {"name": "td3"}})
    words = r"Discrete\(2\); td3 needs a Box action space: algo=sac or algo=appo takes Discrete actions"
    with pytest.raises(ConfigError, match=words):
        preflight.check_actions(td3, discrete)
    words = r"MultiDiscrete\(2, 3\); sac needs a Box or Discrete action space: algo=appo takes Multi"
    with pytest.raises(ConfigError, match=words):
        preflight.check_actions(config(), several)
    for cfg, spec in ((appo(), discrete), (appo(), several), (config(), discrete), (config(), SPEC), (td3, SPEC)):
        preflight.check_actions(cfg, spec)


def test_more_gpus_than_exist_are_refused() -> None:
    for device, world_size, count, key in (
        ("cuda:2", 1, 2, "device"),
        ("cuda", 1, 0, "device"),
        ("cuda", 3, 2, "runner.world_size"),
        ("auto", 3, 2, "runner.world_size"),
    ):
        runner = {"name": "multi_gpu", "world_size": world_size}
        cfg = config(device=device, runner=runner, algo={"batch_size": 240})
        with pytest.raises(ConfigError, match=f"^{key}: got"):
            preflight.check_gpus(cfg, preflight.Gpus([1] * count))


@pytest.mark.promise("no-hang")
def test_a_driver_that_hangs_ends_the_start_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command waited for it for ever, and said nothing."""

    def hang(_: str, timeout_s: float) -> None:
        raise ChildTimeout(f"gave no answer within {timeout_s:g} s")

    monkeypatch.setattr(preflight, "call_in_child", hang)
    with pytest.raises(ConfigError, match=r"cannot use them: it gave no answer within 3 s \(runner.start_timeout_s\)"):
        preflight.preflight(config(device="cuda", runner={"start_timeout_s": 3.0}))


def test_a_resident_replay_must_fit_on_its_device() -> None:
    for device, free, world_size, is_refused in (
        ("cuda", [10**9, 1], 1, False),
        ("cuda:1", [10**9, 1], 1, True),
        ("cuda:0", [20_000_000, 1], 1, False),
        ("cuda:0", [20_000_000, 1], 2, True),  # both ranks have a copy on the one device
        ("auto", [20_000_000, 20_000_000], 2, False),
    ):
        replay, runner = {"capacity": 100_000, "device_share": 0.8}, {"name": "multi_gpu", "world_size": world_size}
        cfg = config(device=device, runner=runner, replay=replay, total_timesteps=10**6)
        problem = r"replay\.source: resident needs .* on cuda:[01]"
        with pytest.raises(ConfigError, match=problem) if is_refused else contextlib.nullcontext():
            preflight.check_resident(cfg, SPEC, free)


def test_an_environment_without_what_the_student_needs_is_refused() -> None:
    other_names = dataclasses.replace(HISTORY, obs_keys=("obs", "privileged", "x"))
    too_short = dataclasses.replace(HISTORY, obs_shapes=((96,), (10,), (5, 192)))
    for spec, words in (
        (SPEC, "observes no groups, allowed a Dict with obs, privileged"),
        (other_names, "observes the groups obs, privileged, x,"),
        (too_short, r"proprio_hist of .* has the shape \(5, 192\), allowed \(frames, numbers\), at least 25 frames"),
    ):
        with pytest.raises(ConfigError, match=words):
            preflight.check_groups(STUDENT, spec)
    preflight.check_groups(STUDENT, HISTORY)


def test_an_actors_group_that_is_not_observed_is_refused_with_those_that_are() -> None:
    for given in ("history", "obs", "privileged", "all"):
        preflight.check_groups(config(algo={"actor_input": given}), HISTORY)
    cfg = config(algo={"name": "td3", "actor_input": "actr"})
    groups = "but Pendulum-v1 observes the groups obs, privileged, proprio_hist; allowed all or one of these"
    for spec, words in ((HISTORY, groups), (SPEC, "but Pendulum-v1 observes no groups; allowed all")):
        with pytest.raises(ConfigError) as caught:
            preflight.check_groups(cfg, spec)
        assert caught.value.problems == (f"algo.actor_input: got actr, {words}",)


@pytest.mark.promise("run-dir")
def test_every_change_that_makes_another_experiment_is_named() -> None:
    saved = config(seed=1, algo={"gamma": 0.9}, total_timesteps=5000)
    with pytest.raises(ConfigError) as caught:
        preflight.check_same(config(seed=2, algo={"gamma": 0.99}, total_timesteps=6000), saved)
    assert caught.value.problems == (
        "algo.gamma: the run has 0.9, this command 0.99; cannot change when a run goes on",
        "seed: the run has 1, this command 2; cannot change when a run goes on",
    )


def test_a_checkpoint_of_another_shape_is_refused() -> None:
    state = SimpleNamespace(fingerprint=fingerprint(config(), SPEC))
    checkpoint: Any = SimpleNamespace(path=Path("checkpoints/step-1"), read=lambda *_: state)
    preflight.check_fits(config(), SPEC, checkpoint)
    with pytest.raises(ConfigError, match="the checkpoint checkpoints/step-1 has"):
        preflight.check_fits(config(), dataclasses.replace(SPEC, obs_dim=18), checkpoint)


def warm(tmp_path: Path, *, host: HostInfo = ALONE, **algo: object) -> LaunchPlan:
    cfg = config(algo=algo, init_from=str(tmp_path / "source"), run_dir=str(tmp_path / "run"))
    return LaunchPlan(cfg, host, 0)


def source_at(path: Path, spec: SpaceSpec = SPEC, **algo: object) -> None:
    path.mkdir()
    write_config(path, config(algo=algo), spec)


def test_every_difference_from_the_run_to_begin_with_is_named(tmp_path: Path) -> None:
    source_at(tmp_path / "source", dataclasses.replace(SPEC, action_high=(2.0,) * 6), hidden_dims=[64])
    with pytest.raises(ConfigError) as caught:
        find_origin(warm(tmp_path), SPEC)
    sizes, bounds = caught.value.problems
    assert sizes == (
        f"algo.hidden_dims: got [256,256], the run {tmp_path / 'source'} has [64]; write algo.hidden_dims=[64]"
    )
    assert bounds.startswith("env.id: action_high was (2.0, 2.0")


@pytest.mark.parametrize("field", ["box_shape", "action_shape"])
def test_another_shape_of_as_many_numbers_is_another_space(tmp_path: Path, field: str) -> None:
    source_at(tmp_path / "source", dataclasses.replace(SPEC, **{field: (2, 3)}))
    with pytest.raises(ConfigError, match=rf"env\.id: {field} was \(2, 3\), is \(3, 2\); .*/source allows the same"):
        find_origin(warm(tmp_path), dataclasses.replace(SPEC, **{field: (3, 2)}))


def test_a_run_of_another_algorithm_or_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    source_at(tmp_path / "source")
    with pytest.raises(ConfigError, match=r"init_from: .* is a run of algo=sac, allowed a run of algo=td3$"):
        find_origin(warm(tmp_path, name="td3"), SPEC)
    with pytest.raises(ConfigError, match="init_from: .* holds no usable checkpoint"):
        find_origin(warm(tmp_path), SPEC)


def test_more_threads_than_the_cores_of_this_host_could_ever_run_are_refused() -> None:
    """A learner with a million died of SIGSEGV."""
    with pytest.raises(ConfigError) as caught:
        preflight.check_threads(config(threads={"learner": 65, "collector": 1_000_000}), cores=2)
    allowed = "allowed at most 64, 32 for each of the 2 cores of this machine, or auto"
    assert caught.value.problems == (
        f"threads.collector: got 1000000, {allowed}",
        f"threads.learner: got 65, {allowed}",
    )


def test_a_processor_with_another_order_of_stores_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "processor", lambda: "aarch64")
    with pytest.raises(ConfigError, match="machine: got aarch64, allowed x86_64: the shared-memory rings"):
        preflight.preflight(RunConfig())


@pytest.mark.parametrize(
    ("device", "given", "process"),
    [
        ("cuda:0", {}, "learner"),
        ("cpu", {}, "own"),
        (None, {}, "own"),
        ("cuda:0", {"collect": {"mode": "overlap"}}, "own"),
        ("cuda:0", {"replay": {"source": "direct"}}, "own"),
        ("cuda:0", {"runner": {"name": "double_buffer"}}, "own"),
        ("cuda:0", {"algo": {"name": "appo"}, "runner": {"name": "appo"}}, "own"),
    ],
)
def test_auto_steps_a_batch_on_a_gpu_in_the_learners_process_where_that_is_possible(
    device: str | None, given: dict[str, Any], process: str
) -> None:
    cfg = preflight.with_process(RunConfig.from_mapping(given), device)
    assert cfg.collect.process == process
    assert cfg.collects_in_learner == (process == "learner")


@pytest.mark.mp
def test_pictures_of_an_environment_that_draws_none_are_refused_before_the_run() -> None:
    env = {"id": "", "batch": "offpolicy.envs.toy_batch:PointMasses"}
    with pytest.raises(ConfigError, match="eval.video: got true, allowed false: .*PointMasses draws no pictures"):
        preflight.preflight(config(env=env, eval={"video": True}))
