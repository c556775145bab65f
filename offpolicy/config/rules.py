"""The rules that join several keys of a configuration; each returns the problems it finds, with what is allowed."""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from offpolicy.config.foreign_names import advice
from offpolicy.config.parsing import is_within
from offpolicy.config.sections import (
    ALGORITHMS,
    FROM_REPLAY,
    FROM_ROLLOUTS,
    MODE_RUNNERS,
    RANK_RUNNERS,
    AlgoConfig,
    AlgorithmInfo,
    CollectConfig,
    ReplayConfig,
    RunSections,
    TimingConfig,
    exact_utd,
)
from offpolicy.files import too_long

TARGET = r"[\w.]+:\w+"  # module:name
JSON_TYPES = (str, int, float, bool, types.NoneType)  # not their subclasses, which YAML refuses
JSON_VALUES = "numbers, texts, true, false, null, lists and mappings"

# Configuration that may change when a run is resumed; anything else would make it another experiment.
RESUMABLE = (
    *("total_timesteps", "device", "log", "sinks", "eval", "stop", "checkpoint", "timing", "threads", "runner"),
    *("env.step_timeout_s", "algo.compile", "callbacks"),
    *("env.vectorization", "env.measure", "env.on_error", "env.max_bad_rows"),
    *("collect.hook", "collect.post_queue", "collect.max_restarts"),
    *(f"replay.{name}" for name in ("source", "demos", "demo_share", "device_share", "slots", "prefetch", "newest")),
)


class Unread(NamedTuple):
    """Options that nothing reads in some configurations."""

    keys: tuple[str, ...]
    holds_for: Callable[[RunSections], bool]
    why: str  # a format of `cfg`


UNREAD = (
    Unread(
        ("algo.alpha_lr", "algo.target_entropy", "algo.target_sigma"),
        lambda cfg: not cfg.algo.auto_alpha,
        "with algo.auto_alpha=false: the temperature stays at algo.init_alpha",
    ),
    Unread(
        ("algo.target_sigma",),
        lambda cfg: cfg.algo.target_entropy is not None,
        "with algo.target_entropy, which takes its place",
    ),
    Unread(
        ("algo.target_kl",),
        lambda cfg: cfg.algo.lr_schedule != "kl_adaptive",
        "with algo.lr_schedule={cfg.algo.lr_schedule}: it is for kl_adaptive",
    ),
    Unread(
        ("algo.rho_clip", "algo.trace_clip"),
        lambda cfg: cfg.algo.advantage == "gae",
        "with algo.advantage=gae: it is for vtrace",
    ),
    Unread(
        ("replay.slots", "replay.prefetch", "replay.newest"),
        lambda cfg: cfg.replay.source in ("direct", "resident"),
        "with replay.source={cfg.replay.source}: it is for prefetch",
    ),
    Unread(
        ("replay.device_share",),
        lambda cfg: cfg.replay.source in ("direct", "prefetch"),
        "with replay.source={cfg.replay.source}: it is for resident",
    ),
    Unread(("collect.band",), lambda cfg: cfg.collect_mode != "free", "without collect.mode=free"),
    Unread(("collect.post_queue",), lambda cfg: cfg.collect.hook is None, "without collect.hook"),
    Unread(
        ("eval.hook", "eval.post_queue"),
        lambda cfg: cfg.eval.episodes == 0,
        "with eval.episodes=0: there is no evaluation",
    ),
    Unread(
        ("eval.every",),
        lambda cfg: cfg.eval.episodes == 0 and cfg.eval.every > 0,  # 0: as it is then
        "with eval.episodes=0: there is no evaluation",
    ),
    Unread(
        ("eval.beside",),
        lambda cfg: cfg.eval.episodes == 0 and cfg.eval.beside == "true",  # false: as it is then
        "with eval.episodes=0: there is no evaluation",
    ),
    Unread(("eval.post_queue",), lambda cfg: cfg.eval.hook is None, "without eval.hook"),
    Unread(("eval.video_mb",), lambda cfg: not cfg.eval.video, "without eval.video=true"),
    Unread(
        ("stop.reward", "stop.patience"),
        lambda cfg: cfg.eval.every >= cfg.total_timesteps,
        "with eval.every={cfg.eval.every}, total_timesteps={cfg.total_timesteps}: no evaluation comes before the end",
    ),
    Unread(("timing.trace_mb",), lambda cfg: not cfg.timing.trace, "without timing.trace=true"),
    Unread(("timing.profile_iterations",), lambda cfg: cfg.timing.profile_at == 0, "without timing.profile_at"),
    Unread(("log.prometheus_address",), lambda cfg: cfg.log.prometheus_port is None, "without log.prometheus_port"),
)


def broken_rules(cfg: RunSections) -> list[str]:
    """Returns the problems of a configuration whose values are each allowed by themselves."""
    problems = device_problems(cfg.device)
    problems += _rollout_problems(cfg) if cfg.algo.learns_from_rollouts else _replay_problems(cfg)
    problems += _unused_options(cfg) + _runner_problems(cfg)
    problems += _stage_problems(cfg) + _encoder_problems(cfg.algo) + _schedule_problems(cfg)
    problems += _path_problems(cfg) + _stop_problems(cfg) + _video_problems(cfg)
    problems += _timing_problems(cfg.timing)
    for key, hook in (("eval.hook", cfg.eval.hook), ("collect.hook", cfg.collect.hook)):
        if hook is not None and not re.fullmatch(TARGET, hook):
            problems.append(f"{key}: got {hook!r}, allowed module:function, such as hooks:draw, or null")
    problems += _list_problems(cfg) + _endpoint_problems(cfg.log.otlp_endpoint)
    if cfg.env.kwargs.get("render_mode") == "human":
        problems.append(
            "env.kwargs.render_mode: got 'human', allowed rgb_array or nothing: training opens no window;"
            " offpolicy play RUN opens one"
        )
    problems += _not_in_json(cfg.env.kwargs, "env.kwargs")
    if not cfg.env.id:
        problems.append("env.id: got '', allowed a Gymnasium id such as Pendulum-v1 or module:EnvId-v0")
    return problems


def device_problems(name: object) -> list[str]:
    """Returns what is wrong with the name of a device."""
    if isinstance(name, str) and re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", name):
        return []
    return [f"device: got {name!r}, allowed auto, cpu, cuda or cuda:<index>"]


def _not_in_json(value: Any, path: str) -> list[str]:  # Any: not checked yet
    """Returns the keys that are no texts, and the values that JSON has not: processes get the configuration as JSON."""
    inner: Iterable[tuple[str, Any]] = ()
    odd = list[str]()
    if isinstance(value, Mapping):
        inner = [(f"{path}.{key}", below) for key, below in value.items()]
        found = [key for key in value if not isinstance(key, str)]
        odd = [f"{path}: got the key {key!r}, allowed texts: {path}.{key}=..., in a file '{key}'" for key in found]
    elif isinstance(value, list | tuple):
        inner = [(f"{path}[{index}]", below) for index, below in enumerate(value)]
    elif type(value) not in JSON_TYPES:
        odd = [f"{path}: got {value!r} ({type(value).__name__}), allowed {JSON_VALUES}"]
    return odd + [problem for name, below in inner for problem in _not_in_json(below, name)]


def _stage_problems(cfg: RunSections) -> list[str]:
    """Returns what does not fit HORA, its stages, or an algorithm without stages."""
    problems, algo = list[str](), cfg.algo
    if algo.is_adapting and cfg.teacher is None:
        problems.append("teacher: got null, allowed a run directory of algo=hora stage=teach, to begin with")
    if cfg.teacher and not algo.is_adapting:
        problems.append(f"teacher: got {cfg.teacher!r}, allowed nothing without algo=hora stage=adapt")
    if algo.is_adapting and algo.lr_schedule == "kl_adaptive":
        problems.append("algo.lr_schedule: got kl_adaptive, allowed constant or linear with stage=adapt: it has no KL")
    if cfg.init_from and algo.is_adapting:
        problems.append(f"init_from: got {cfg.init_from!r}, allowed null with stage=adapt: it begins with its teacher")
    return problems


def _path_problems(cfg: RunSections) -> list[str]:
    paths = {
        "run_dir": cfg.run_dir, "teacher": cfg.teacher, "init_from": cfg.init_from, "replay.demos": cfg.replay.demos,
    }  # fmt: skip
    empty = [
        f"{key}: got '', allowed a path or null; is a variable of the shell unset?"
        for key, path in paths.items()
        if path == ""
    ]
    return empty + [problem for key, path in paths.items() if path for problem in too_long(key, path)]


def _encoder_problems(algo: AlgoConfig) -> list[str]:
    """Returns why `algo.network` cannot stand before these networks."""
    if algo.network.name is None:
        return []
    problems, got = list[str](), f"algo.network.name: got {algo.network.name}, allowed null with"
    if algo.name in ("hora", "flashsac"):
        problems.append(f"{got} algo={algo.name}: its networks are its own")
    if algo.actor_input != "all":
        problems.append(f"{got} algo.actor_input={algo.actor_input}: an encoder reads the whole observation")
    return problems


def _video_problems(cfg: RunSections) -> list[str]:
    if cfg.eval.video and not cfg.eval.episodes:
        return ["eval.video: got true, allowed false with eval.episodes=0: there is no evaluation to film"]
    return []


def _stop_problems(cfg: RunSections) -> list[str]:
    """Refuses to wait for evaluations that there are none of."""
    why = "eval.episodes=0" if not cfg.eval.episodes else "eval.every=0" if not cfg.eval.every else None
    given = {"reward": (cfg.stop.reward, "null"), "patience": (cfg.stop.patience or None, "0")}
    return [
        f"stop.{key}: got {value:g}, allowed {neutral} with {why}: only an evaluation during training stops a run"
        for key, (value, neutral) in given.items()
        if value is not None and why
    ]


def _list_problems(cfg: RunSections) -> list[str]:
    """Returns the entries of lists that do not name something in a module, and wrappers where none would be called."""
    named = {"env.wrappers": cfg.env.wrappers, "callbacks": cfg.callbacks}
    problems = [
        f"{key}: got {target!r}, allowed module:name, such as mine:Squashed"
        for key, targets in named.items()
        for target in targets
        if not re.fullmatch(TARGET, target)
    ]
    if cfg.env.wrappers and cfg.env.vectorization in ("mujoco", "envpool"):
        problems.append(
            f"env.vectorization: got {cfg.env.vectorization}, allowed auto, sync or async with env.wrappers: they wrap"
            " one environment, and this is many in one"
        )
    return problems


def _endpoint_problems(endpoint: str | None) -> list[str]:
    """Returns what is wrong with the address of an OpenTelemetry collector."""
    if endpoint is None:
        return []
    try:
        parts = urlsplit(endpoint)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        is_good = False
    allowed = "allowed an address such as http://127.0.0.1:4318, or with the path where it takes metrics"
    return [] if is_good else [f"log.otlp_endpoint: got {endpoint!r}, {allowed}"]


def owners(infos: Iterable[AlgorithmInfo]) -> list[str]:
    """Returns the names of algorithms: with the stage where one of several is meant."""
    stages: dict[str, list[AlgorithmInfo]] = {}
    for info in infos:
        stages.setdefault(info.name, []).append(info)
    num_stages = Counter(info.name for info in ALGORITHMS)
    return [name if len(own) == num_stages[name] else f"{name} stage={own[0].stage}" for name, own in stages.items()]


def _timing_problems(timing: TimingConfig) -> list[str]:
    problems = []
    if timing.trace and not timing.enabled:
        problems.append("timing.trace: got true, allowed false with timing.enabled=false")
    if timing.profile_at and not timing.trace:
        problems.append(f"timing.profile_at: got {timing.profile_at}, allowed 0 without timing.trace=true")
    return problems


def _unused_options(cfg: RunSections) -> list[str]:
    """Refuses options of other algorithms, of the replay where there is none, and of rollouts where there are none.

    They would silently do nothing.
    """
    algo, has_rollouts = cfg.algo, cfg.algo.learns_from_rollouts
    name = "hora stage=adapt" if algo.is_adapting else algo.name
    problems = [
        f"algo.{spec.name}: got {getattr(algo, spec.name)!r}, allowed nothing with algo={name}:"
        f" {_owners_text(spec)}{_instead(spec.name, algo)}"
        for spec in dataclasses.fields(algo)
        if not algo.info.reads(spec) and getattr(algo, spec.name) != getattr(type(algo)(), spec.name)
    ]
    section, name = (cfg.replay, "replay") if has_rollouts else (cfg.rollout, "rollout")
    users = ", ".join(owners(FROM_REPLAY if has_rollouts else FROM_ROLLOUTS))
    problems += [
        f"{name}.{spec.name}: got {getattr(section, spec.name)!r}, allowed nothing with algo={algo.name}:"
        f" it is for {users}"
        for spec in dataclasses.fields(section)
        if getattr(section, spec.name) != spec.default
    ]
    if has_rollouts and cfg.collect.band != CollectConfig().band:
        problems.append(
            f"collect.band: got {cfg.collect.band}, allowed nothing with algo={algo.name}: rollout.slots bounds it"
        )
    return problems


def unread_options(cfg: RunSections, given: Iterable[str]) -> dict[str, str]:
    """Returns the problem of each option that was given, and that nothing reads in a valid configuration, by its key.

    One given at its default is accepted. What a preset or another run has set stays: whoever changes the option that it
    depends on need not undo it. What a plug-in's algorithm reads is its own affair.
    """
    keys, is_foreign = list(given), cfg.algo.info.options is not None
    problems: dict[str, str] = {}
    for row in UNREAD:
        for key in row.keys:
            section, _, name = key.partition(".")
            options = getattr(cfg, section)
            value = getattr(options, name)
            is_given = any(is_within(each, (key,)) for each in keys) and value != getattr(type(options)(), name)
            if is_given and row.holds_for(cfg) and not (is_foreign and section == "algo"):
                problems[key] = f"{key}: got {value!r}, allowed nothing {row.why.format(cfg=cfg)}"
    return problems


def _owners_text(spec: dataclasses.Field[Any]) -> str:  # Any: the type of an option
    only = spec.metadata.get("only")
    return "the plug-in does not read it" if only is None else f"it is for {', '.join(owners(only))}"


def _instead(name: str, algo: AlgoConfig) -> str:
    """Returns what to write for an option of another algorithm where this one has another name for it."""
    instead = advice(name, getattr(algo, name), algo.info)
    return f"; {instead}" if instead and instead.startswith("write") else ""


def _replay_problems(cfg: RunSections) -> list[str]:
    share = cfg.replay.demo_share
    if cfg.replay.demos is None and share != ReplayConfig().demo_share:
        problems = [f"replay.demo_share: got {share:g}, allowed nothing without replay.demos"]
    else:
        problems = impossible_share(cfg, cfg.runner.world_size)
    floor = cfg.replay.age_floor
    if cfg.replay.age_weighting is None and floor != ReplayConfig().age_floor:
        problems.append(f"replay.age_floor: got {floor:g}, allowed nothing without replay.age_weighting")
    for key, rows in (("learning_starts", cfg.algo.learning_starts), ("batch_size", cfg.algo.batch_size)):
        if cfg.replay.capacity < rows:
            problems.append(f"replay.capacity: got {cfg.replay.capacity}, allowed at least algo.{key}={rows}")
    step_rows = cfg.collect.num_collectors * cfg.env.num_envs * cfg.algo.n_step
    if cfg.replay.capacity < 2 * step_rows:
        problems.append(
            f"replay.capacity: got {cfg.replay.capacity}, allowed at least 2 * collect.num_collectors * env.num_envs *"
            f" algo.n_step = {2 * step_rows}: one vector step must not recycle half of a ring"
        )
    problems += _first_update_problems(cfg, step_rows)
    if cfg.algo.batch_size % cfg.runner.world_size:
        problems.append(
            f"algo.batch_size: got {cfg.algo.batch_size}, allowed a multiple of"
            f" runner.world_size={cfg.runner.world_size}: each rank takes an equal part of the batch"
        )
    if cfg.algo.scales_reward and cfg.algo.n_step > 1:
        problems.append(
            f"algo.n_step: got {cfg.algo.n_step}, allowed 1 with algo.scale_reward=true: the running return is one of"
            " single rewards, and rows of n steps hold sums; write algo.scale_reward=false"
        )
    if cfg.algo.compile == "graph" and cfg.device == "cpu":
        problems.append("algo.compile: got graph, allowed off with device=cpu: CUDA alone captures graphs")
    if cfg.algo.precision == "bf16" and cfg.device == "cpu":
        problems.append("algo.precision: got bf16, allowed fp32 with device=cpu")
    return problems + impossible_compile(cfg, cfg.runner.world_size) + _kernels_problems(cfg)


def first_update_step(cfg: RunSections, num_hosts: int = 1) -> int:
    """Returns the env steps by which the first update is due; each of the hosts has the collectors of `cfg`."""
    envs = cfg.env.num_envs * cfg.collect.num_collectors * num_hosts
    if cfg.algo.learns_from_rollouts:
        return cfg.rollout.length * envs
    return max(cfg.algo.learning_starts, cfg.algo.n_step * envs) + math.ceil(1 / exact_utd(cfg.algo.utd))


def _first_update_problems(cfg: RunSections, step_rows: int) -> list[str]:
    """Refuses a run that ends before its first update. `step_rows`: transitions until all have a row of n steps."""
    total, starts, utd = cfg.total_timesteps, cfg.algo.learning_starts, cfg.algo.utd
    if starts >= total:
        return [
            f"algo.learning_starts: got {starts}, allowed less than total_timesteps={total}: no update would ever"
            f" happen; {_shorter_start(cfg)}"
        ]
    first = first_update_step(cfg)
    if first <= total:
        return []
    until = "algo.learning_starts"
    if step_rows > starts:
        until = "algo.n_step * env.num_envs * collect.num_collectors"
    return [
        f"total_timesteps: got {total}, allowed at least {first}, the env step of the first update:"
        f" {until} = {max(starts, step_rows)} and 1 / algo.utd = {math.ceil(1 / exact_utd(utd))}"
    ]


def _kernels_problems(cfg: RunSections) -> list[str]:
    """Refuses `algo.kernels=fast` where the configuration alone says that there are none."""
    why_not = cfg.algo.why_not_fast or (f"device={cfg.device}" if cfg.device.startswith("cuda") else "")
    is_refused = cfg.algo.kernels == "fast" and why_not
    return [f"algo.kernels: got fast, allowed auto or textbook with {why_not}"] if is_refused else []


def _shorter_start(cfg: RunSections) -> str:
    steps = max(1, cfg.total_timesteps // 2)
    return f"write algo.learning_starts={steps}" if cfg.total_timesteps > 1 else "write total_timesteps=2000"


def impossible_compile(cfg: RunSections, num_ranks: int) -> list[str]:
    """Refuses to capture updates in which `num_ranks` ranks average their gradients."""
    if num_ranks > 1 and cfg.algo.compile == "graph":
        return [
            f"algo.compile: got graph, allowed off with {num_ranks} learner ranks, which wait for each other within an"
            " update"
        ]
    return []


def impossible_share(cfg: RunSections, num_ranks: int) -> list[str]:
    """Refuses a share of demonstrations that is none or all of the rows that each of `num_ranks` takes of a batch."""
    share, rows = cfg.replay.demo_share, cfg.algo.batch_size // num_ranks
    if cfg.replay.demos is not None and not 0 < round(share * rows) < rows:
        return [
            f"replay.demo_share: got {share:g}, allowed a share that is at least one of the {rows} rows of a batch"
            " of one rank, and not all of them"
        ]
    return []


def _rollout_problems(cfg: RunSections) -> list[str]:
    problems, ranks, collectors = list[str](), cfg.runner.world_size, cfg.collect.num_collectors
    if collectors % ranks:
        problems.append(
            f"collect.num_collectors: got {collectors}, allowed a multiple of runner.world_size={ranks}:"
            " each rank learns from collectors of its own"
        )
        return problems
    rows = cfg.rollout.length * cfg.env.num_envs * (collectors // ranks)
    if rows % cfg.algo.num_minibatches:
        problems.append(
            f"algo.num_minibatches: got {cfg.algo.num_minibatches}, allowed a divisor of the {rows} rows of a batch"
            f" (rollout.length={cfg.rollout.length} x env.num_envs={cfg.env.num_envs} x"
            f" {collectors // ranks} collectors per rank)"
        )
    if cfg.algo.trace_clip > cfg.algo.rho_clip:
        problems.append(
            f"algo.trace_clip: got {cfg.algo.trace_clip:g}, allowed at most algo.rho_clip={cfg.algo.rho_clip:g}"
        )
    if rows * ranks > cfg.total_timesteps:
        problems.append(
            f"total_timesteps: got {cfg.total_timesteps}, allowed at least {rows * ranks}, one batch of rollouts"
            f" (rollout.length={cfg.rollout.length} x env.num_envs={cfg.env.num_envs} x {collectors} collectors);"
            f" write {_smaller_rollouts(cfg)}"
        )
    return problems


def _smaller_rollouts(cfg: RunSections) -> str:
    """Returns the longest rollouts of which a batch fits into the run, else the shortest run that holds a batch."""
    envs, ranks = cfg.env.num_envs * cfg.collect.num_collectors, cfg.runner.world_size
    for length in range(min(cfg.rollout.length, cfg.total_timesteps // envs), 0, -1):
        if (length * envs // ranks) % cfg.algo.num_minibatches == 0:
            return f"total_timesteps={cfg.total_timesteps} rollout.length={length}"
    return f"total_timesteps={cfg.rollout.length * envs}"


def _runner_problems(cfg: RunSections) -> list[str]:
    runner, problems = cfg.runner, list[str]()
    if cfg.algo.learns_from_rollouts != (runner.name == "appo"):
        fitting = "appo" if cfg.algo.learns_from_rollouts else "single_gpu, double_buffer or multi_gpu"
        problems.append(f"runner: got {runner.name}, allowed {fitting} with algo={cfg.algo.name}")
    if runner.world_size != 1 and runner.name not in RANK_RUNNERS:
        problems.append(
            f"runner.world_size: got {runner.world_size}, allowed 1 with runner={runner.name}; several learner ranks"
            " need runner=multi_gpu"
        )
    if cfg.collect.mode == "auto" and runner.name not in MODE_RUNNERS:
        problems.append(
            f"collect.mode: got auto, allowed alternate, overlap or free with runner={runner.name}; auto is for"
            " single_gpu and double_buffer"
        )
    if runner.backend == "nccl" and cfg.device == "cpu":
        problems.append("runner.backend: got nccl, allowed auto, memory or gloo with device=cpu: NCCL joins GPUs only")
    if runner.backend == "nccl" and runner.world_size > 1 and ":" in cfg.device:
        problems.append(
            f"runner.backend: got nccl, allowed auto, memory or gloo with device={cfg.device}: NCCL refuses"
            f" {runner.world_size} ranks on one GPU; device=cuda gives each rank its own"
        )
    if runner.name == "double_buffer" and cfg.replay.source not in ("auto", "prefetch"):
        problems.append(
            f"replay.source: got {cfg.replay.source}, allowed prefetch or auto with runner=double_buffer; use"
            " runner=single_gpu"
        )
    return problems


def _schedule_problems(cfg: RunSections) -> list[str]:
    problems = [
        f"algo.{name}.begin: got {ramp.begin}, allowed less than total_timesteps={cfg.total_timesteps}: it would never"
        " begin"
        for name, ramp in cfg.algo.ramps.items()
        if (ramp.begin or 0) >= cfg.total_timesteps and getattr(cfg.algo, name).begin is not None
    ]
    if "lr" in cfg.algo.ramps and cfg.algo.lr_schedule != "constant":
        problems.append(
            f"algo.lr: got a schedule, allowed a number with algo.lr_schedule={cfg.algo.lr_schedule}, which is one"
        )
    return problems
