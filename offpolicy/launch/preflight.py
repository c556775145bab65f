"""Checks before any training process exists: devices, environment, memory, checkpoint and teacher."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from offpolicy.checkpoint import Checkpoint, SharedState, run_store
from offpolicy.checkpoint.content import PLUGINS_KEY, fingerprint
from offpolicy.config.algorithms import HORA_TEACH, algorithms_for
from offpolicy.config.parsing import flatten, is_within
from offpolicy.config.run_files import read_config, read_spec
from offpolicy.config.schema import RESUMABLE, RunConfig, in_process_problems
from offpolicy.envs.probe import Probed, check_id, probe
from offpolicy.errors import ConfigError
from offpolicy.launch.hosts import LaunchPlan
from offpolicy.launch.run_dir import has_saved_nothing
from offpolicy.launch.run_lock import is_running
from offpolicy.logger.wandb import require_login
from offpolicy.machine import X86_64, memory, num_usable_cores, processor, runs_program
from offpolicy.processes.fork_server import ChildError, ChildTimeout, ForkServer, call_in_child
from offpolicy.replay.demonstrations import read_demos
from offpolicy.runs import existing_run
from offpolicy.training.run_memory import check_memory, check_share
from offpolicy.types import HISTORY, MIN_FRAMES, OBS, PRIVILEGED, SpaceSpec

# Configuration of the networks that a student takes over from its teacher.
TEACHER_KEYS = ("hidden_dims", "activation", "latent_dim", "encoder_dims", "normalize_obs")

# Configuration of the networks, and the spaces, that a run has in common with the one it begins with.
SOURCE_KEYS = (
    *TEACHER_KEYS, "actor_input", "critic_layer_norm", "normalize_value",
    *("actor_width", "critic_width", "num_blocks", "num_bins", "value_max", "scale_reward"),  # of FlashSAC
)  # fmt: skip

HEAD_TIMEOUT_S = 5.0  # for the head of a Ray cluster to answer

# A smaller machine may have as many to repeat a run of a larger one: their number decides the last bits of an update.
THREADS_PER_CORE = 32  # threads of a process beyond which its number is taken for a mistake


def preflight(cfg: RunConfig, server: ForkServer | None = None) -> Probed:
    """Checks devices, environment and memory; returns the environment's spaces and how it is stepped.

    The environment is tried in a fork of `server`, or in a fresh interpreter. Raises `ConfigError`, or `EnvFailure` if
    the environment itself fails.
    """
    check_processor(processor())
    check_id(cfg.env)
    check_threads(cfg, num_usable_cores())
    if cfg.collect.remote_hosts:
        check_ray(cfg)
    gpus = find_gpus(cfg)
    check_gpus(cfg, gpus)
    if cfg.log.wandb == "online":
        require_login()
    found = probe(cfg.env, server, has_evaluations=cfg.eval.episodes > 0)
    spec = found.spec
    if cfg.eval.video and not spec.draws:
        raise ConfigError(f"eval.video: got true, allowed false: {cfg.env.name} draws no pictures")
    check_actions(cfg, spec)
    check_groups(cfg, spec)
    if not (found.device or "").startswith("cuda"):  # else the replay may lie there
        check_memory(cfg, spec, is_of_tensors=cfg.collects_in_learner and found.device is not None)
    if cfg.replay.source == "resident":
        check_resident(cfg, spec, gpus.free)
    if cfg.replay.demos is not None:
        demos = read_demos(cfg.replay.demos, spec)
        if cfg.algo.n_step > 1:
            demos.require_sequences()
    return found


def with_process(cfg: RunConfig, env_device: str | None) -> RunConfig:
    """Returns the configuration with the process that `collect.process=auto` stands for.

    `env_device` is that of a batch's tensors: from a GPU they cannot cross to another process.
    """
    in_learner = replace(cfg, collect=replace(cfg.collect, process="learner"))
    packs = cfg.runner.name == "double_buffer" or cfg.replay.source in ("direct", "prefetch")  # rows on the host
    if (env_device or "").startswith("cuda") and not packs and not list(in_process_problems(in_learner)):
        return in_learner
    return replace(cfg, collect=replace(cfg.collect, process="own"))


def check_ray(cfg: RunConfig) -> None:
    """Refuses to begin without Ray, or with a cluster without a token, a head, or this host. Raises `ConfigError`."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            f"collect.remote_hosts: got {cfg.collect.remote_hosts}, allowed 0 without Ray; type"
            " pip install 'offpolicy[ray]'"
        )
    host, _, port = cfg.runner.ray.partition(":")
    if not port:  # of this machine
        return
    if os.environ.get("RAY_AUTH_MODE") != "token" and not (host == "localhost" or host.startswith("127.")):
        raise ConfigError(
            f"runner.ray: got {cfg.runner.ray} without RAY_AUTH_MODE=token, allowed 127.0.0.1:{port}; a cluster"
            " without a token runs what anybody sends: export the variable on each host (docs/machines.md)"
        )
    try:
        socket.create_connection((host, int(port)), HEAD_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"runner.ray: got {cfg.runner.ray}, where nothing answers ({error}), allowed local, or HOST:PORT of a head;"
            f" on that host type ray start --head --port={port}"
        ) from error
    if not runs_program("raylet"):  # Ray would abort the process
        raise ConfigError(
            f"runner.ray: got {cfg.runner.ray}, allowed a cluster that this host has joined; type here"
            f" ray start --address={cfg.runner.ray} --num-cpus=0"
        )


def check_processor(kind: str) -> None:
    """Refuses a processor that shows stores to other cores in another order than the program's. Raises `ConfigError`.

    A row could be read there before it is whole, and nothing would notice.
    """
    if kind not in X86_64:
        raise ConfigError(
            f"machine: got {kind}, allowed {X86_64[0]}: the shared-memory rings rely on its order of stores, and"
            " without it a batch could hold half-written rows; docs/install.md says what is missing"
        )


def check_threads(cfg: RunConfig, cores: int) -> None:
    """Refuses more threads than this host can have: a learner of a million dies of them. Raises `ConfigError`."""
    most = THREADS_PER_CORE * cores
    given = {"threads.collector": cfg.threads.collector, "threads.learner": cfg.threads.learner}
    problems = [
        f"{key}: got {number}, allowed at most {most}, {THREADS_PER_CORE} for each of the {cores} cores of this"
        " machine, or auto"
        for key, number in given.items()
        if isinstance(number, int) and number > most
    ]
    if problems:
        raise ConfigError(problems)


def check_actions(cfg: RunConfig, spec: SpaceSpec) -> None:
    """Refuses an action space that the algorithm cannot act in. Raises `ConfigError`."""
    allowed = cfg.algo.info.action_spaces
    if spec.action_space not in allowed:
        space = f"{spec.action_space}({', '.join(map(str, spec.choices))})"
        raise ConfigError(
            f"env.id: got {cfg.env.name}, whose actions are {space}; {cfg.algo.name} needs a {' or '.join(allowed)}"
            f" action space: {algorithms_for(spec.action_space)} takes {spec.action_space} actions"
        )


def check_groups(cfg: RunConfig, spec: SpaceSpec) -> None:
    """Refuses an environment without the observation groups that the algorithm needs. Raises `ConfigError`."""
    got = f"the groups {', '.join(spec.obs_keys)}" if spec.obs_keys else "no groups"
    group = spec.actor_group(cfg.algo.actor_input)
    if group is not None and group not in spec.obs_keys:
        raise ConfigError(
            f"algo.actor_input: got {cfg.algo.actor_input}, but {cfg.env.name} observes {got}; allowed all"
            + (" or one of these" if spec.obs_keys else "")
        )
    if cfg.algo.name != "hora":
        return
    env, needed = cfg.env.name, (OBS, PRIVILEGED, HISTORY) if cfg.algo.is_adapting else (OBS, PRIVILEGED)
    if not set(needed) <= set(spec.obs_keys):
        advice = "see env.kwargs.groups" if "groups" in cfg.env.kwargs else "write env=hand_rotation, which has them"
        raise ConfigError(
            f"env.id: {env} observes {got}, allowed a Dict with {', '.join(needed)} for algo=hora"
            f" stage={cfg.algo.stage}; {advice}"
        )
    shape = spec.shape_of(HISTORY) if cfg.algo.is_adapting else (MIN_FRAMES, 1)
    if len(shape) != 2 or shape[0] < MIN_FRAMES:
        allowed = f"(frames, numbers), at least {MIN_FRAMES} frames"
        raise ConfigError(f"env.id: {HISTORY} of {env} has the shape {shape}, allowed {allowed}")


class Gpus(NamedTuple):
    """What torch can use."""

    free: list[int]  # bytes of every CUDA device
    problem: str = ""  # what torch says where it cannot use those that there are


def find_gpus(cfg: RunConfig) -> Gpus:
    """Returns the CUDA devices where they matter. A child process asks torch: this one stays free of it."""
    would_matter = cfg.runner.world_size > 1 or cfg.replay.source == "resident"
    if not (cfg.device.startswith("cuda") or (cfg.device == "auto" and would_matter)):
        return Gpus([])
    try:
        target = "offpolicy.launch.preflight:free_cuda_memory"
        return Gpus(*call_in_child(target, timeout_s=cfg.runner.start_timeout_s))
    except ChildTimeout as error:  # a driver that hangs
        return Gpus([], f"it {error.reason} (runner.start_timeout_s)")
    except ChildError as error:  # torch cannot be imported, or its driver takes the process down
        return Gpus([], (error.output.splitlines() or [error.reason])[-1])


def free_cuda_memory(_: None) -> tuple[list[int], str]:
    """Runs in the child of `find_gpus`."""
    import torch

    try:
        if torch.cuda.device_count():  # the driver counts devices that torch may be unable to use
            torch.cuda.current_device()  # says why
        return [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())], ""
    except (RuntimeError, AssertionError) as error:
        return [], str(error).splitlines()[0]


def check_gpus(cfg: RunConfig, gpus: Gpus) -> None:
    """Refuses a device that is not there, and more ranks than GPUs. Raises `ConfigError`."""
    index, count = cfg.device.partition(":")[2], len(gpus.free)
    if cfg.device.startswith("cuda") and int(index or 0) >= count:
        why = f"; torch cannot use them: {gpus.problem}" if gpus.problem else ""
        raise ConfigError(
            f"device: got {cfg.device}, allowed auto, cpu or one of the {count} CUDA devices of this machine{why}"
        )
    if count and cfg.device != "cpu" and not index and cfg.runner.world_size > count:
        raise ConfigError(
            f"runner.world_size: got {cfg.runner.world_size}, allowed 1 to {count}, the CUDA devices of this machine;"
            " device=cuda:0 lets ranks share a GPU, device=cpu needs none"
        )


def check_resident(cfg: RunConfig, spec: SpaceSpec, free: list[int]) -> None:
    """Refuses a device copy of the replay that does not fit. Raises `ConfigError`."""
    index, is_shared = int(cfg.device.partition(":")[2] or 0), ":" in cfg.device or not free
    where, available = (f"cuda:{index}", free[index]) if free else ("the CPU", memory()[0])
    check_share(cfg, spec, where, available, copies=cfg.runner.world_size if is_shared else 1)


def check_same(cfg: RunConfig, saved: RunConfig) -> None:
    """Refuses to resume a run under another configuration, naming every difference. Raises `ConfigError`."""
    before, now = flatten(saved.to_mapping()), flatten(cfg.to_mapping())
    free = (*RESUMABLE, "run_dir", "resume", "teacher", "init_from")  # a checkpoint holds all there is of these
    differences = [
        f"{key}: the run has {before.get(key)!r}, this command {now.get(key)!r}; cannot change when a run goes on"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and not is_within(key, free)
    ]
    if differences:
        raise ConfigError(differences)


def check_restart(cfg: RunConfig) -> None:
    """Refuses to start a run again that saved nothing, under another configuration. Raises `ConfigError`.

    A run that goes on is not started again: `RunDir.claim` refuses it and names its process.
    """
    path = Path(cfg.run_dir or ".")
    if is_running(path) or not has_saved_nothing(path):
        return
    try:
        saved = read_config(path)
    except ConfigError:  # it ended before it had written a whole one
        return
    check_same(cfg, saved)


def check_fits(cfg: RunConfig, spec: SpaceSpec, checkpoint: Checkpoint) -> None:
    """Refuses to resume a checkpoint of another shape, naming every difference. Raises `ConfigError`."""
    saved = checkpoint.read(SharedState, "state").fingerprint
    now = fingerprint(cfg, spec)
    differences = [
        f"{key}: the checkpoint {checkpoint.path} has {saved.get(key)!r}, this configuration {value}"
        for key, value in now.items()
        if key != PLUGINS_KEY and saved.get(key) != value
    ]
    if differences:
        raise ConfigError(differences)


def check_spaces(path: Path, spec: SpaceSpec) -> None:
    """Refuses to resume the run at `path` with other spaces than it recorded, naming every difference.

    A checkpoint has their sizes alone. As many numbers in another shape or order, or within other bounds, are other
    observations and actions than those that the networks and the replay hold. Raises `ConfigError`.
    """
    if not (path / "spaces.json").is_file():
        return
    before = read_spec(path)
    if differences := before.differences(spec):
        refusal = f"the spaces of the run {path} cannot change when it goes on"
        raise ConfigError([f"env.id: {difference}: {refusal}" for difference in differences])


def find_origin(plan: LaunchPlan, spec: SpaceSpec) -> tuple[LaunchPlan, int | None]:
    """Returns the plan with the directory of the run that `teacher` or `init_from` names, and that run's newest step.

    The step is None where this host's learner takes nothing over: only rank 0 reads that run, and only at the start of
    its own. From then on its own checkpoints hold all of it. Raises `ConfigError` naming every difference between the
    networks and spaces of the two.
    """
    cfg = plan.cfg
    key, given = ("init_from", cfg.init_from) if cfg.teacher is None else ("teacher", cfg.teacher)
    if given is None or plan.host.index or plan.start_step:
        return plan, None
    if run_store(Path(cfg.run_dir or ".")).newest_valid(reads_rows=False) is not None:
        return plan, None
    path = existing_run(given, key)
    if differences := origin_differences(path, cfg, spec):
        raise ConfigError(differences)
    store = run_store(path)
    checkpoint = store.newest_valid(reads_rows=False)  # its networks are wanted, and that run may go on
    if checkpoint is None:
        raise ConfigError("\n".join([*store.rejected, f"{key}: {path} holds no usable checkpoint"]))
    cfg = replace(cfg, teacher=str(path)) if key == "teacher" else replace(cfg, init_from=str(path))
    return replace(plan, cfg=cfg), checkpoint.env_steps


def origin_differences(path: Path, cfg: RunConfig, spec: SpaceSpec) -> list[str]:
    """Returns every reason why the networks of the run at `path`, a teacher or one to begin with, do not fit."""
    origin, origin_spec, is_teacher = read_config(path), read_spec(path), cfg.teacher is not None
    theirs, allowed = origin.algo.info, HORA_TEACH if is_teacher else cfg.algo.info
    if (theirs.name, theirs.stage) != (allowed.name, allowed.stage):
        key = "teacher" if is_teacher else "init_from"
        return [f"{key}: {path} is a run of algo={theirs.choice}, allowed a run of algo={allowed.choice}"]
    found = origin_spec.differences(spec)
    if is_teacher:  # its student observes the history besides
        both = ((group, origin_spec.shape_of(group), spec.shape_of(group)) for group in (OBS, PRIVILEGED))
        found = [each for each in found if not each.startswith(("obs_", "box_"))]
        found = [f"group {group} was {old}, is {new}" for group, old, new in both if old != new] + found
    sizes = _other_sizes(path, origin, cfg, TEACHER_KEYS if is_teacher else SOURCE_KEYS)
    return sizes + [f"env.id: {each}; {path} allows the same" for each in found]


def _other_sizes(path: Path, source: RunConfig, cfg: RunConfig, names: Sequence[str]) -> list[str]:
    """Returns the options of the networks that are others in the run at `path`, each with what to write."""
    both = ((name, _text(getattr(source.algo, name)), _text(getattr(cfg.algo, name))) for name in names)
    return [
        f"algo.{name}: got {ours}, the run {path} has {theirs}; write algo.{name}={theirs}"
        for name, theirs, ours in both
        if theirs != ours
    ]


def _text(value: object) -> str:
    """Returns a value the way it is written on the command line."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else str(value).lower()
